"""fix_the_mismatch: right answers of another kind pass, and each mistake in values has a name."""

import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.graders.fix_the_mismatch import GRADER
from labkit.grade.graders.mismatch_theories import THEORIES, mean_of_all, sums_of
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "fix_the_mismatch"


def packed_into_one(x, y, scale, shift, group):
    error = x * scale + shift - y
    parts = [(2 * error * x).sum(0), (2 * error).sum(0), (error**2).sum()[None]]
    parts.append(torch.tensor([len(x)], dtype=torch.float64))
    total = group.all_reduce(torch.cat(parts))
    total = total / total[-1]
    d = len(scale)
    return scale - 0.01 * total[:d], shift - 0.01 * total[d : 2 * d], total[2 * d]


def in_flight_together(x, y, scale, shift, group):
    error = x * scale + shift - y
    count = group.all_reduce(torch.tensor(len(x)), wait=False)
    parts = [(2 * error * x).sum(0), (2 * error).sum(0), (error**2).sum()]
    pendings = [group.all_reduce(part, wait=False) for part in parts]
    count = count.wait()
    grad_scale, grad_shift, loss = (pending.wait() / count for pending in pendings)
    return scale - 0.01 * grad_scale, shift - 0.01 * grad_shift, loss


def through_rank_0(x, y, scale, shift, group):
    """Weighted means: each rank's mean, weighed by its share of the examples."""
    error = x * scale + shift - y
    share = len(x) / group.all_reduce(torch.tensor(float(len(x)))).item()
    count = max(len(x), 1)
    means = [(2 * error * x).sum(0) / count, (2 * error).sum(0) / count, (error**2).sum() / count]
    grad_scale, grad_shift, loss = (group.all_reduce(mean * share) for mean in means)
    return [scale - 0.01 * grad_scale, shift - 0.01 * grad_shift, loss]


def each_sum_says_what_it_is_for(x, y, scale, shift, group):
    error = x * scale + shift - y
    parts = [(2 * error * x).sum(0), (2 * error).sum(0), (error**2).sum()]
    with group.label("examples"):
        count = group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))
    sums = []
    for name, part in zip(("scale", "shift", "loss"), parts):
        with group.label(name), group.region(name):
            sums.append(group.all_reduce(part) / count)
    return scale - 0.01 * sums[0], shift - 0.01 * sums[1], sums[2]


@pytest.mark.parametrize(
    "program",
    [packed_into_one, in_flight_together, through_rank_0, each_sum_says_what_it_is_for],
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_theory_of_a_mistake_predicts_what_is_right_in_every_case(world_size):
    for seed in range(20):
        cases = GRADER.cases(world_size, random.Random(seed))
        for theory in THEORIES:
            assert any(
                not torch.equal(ours, right)
                for case in cases
                for ours, right in zip(
                    theory.results(sums_of(case), 0), mean_of_all(sums_of(case), 0)
                )
            ), theory.name


def test_the_serial_step_is_that_of_autograd():
    (case, *_) = GRADER.cases(3, random.Random(1))
    x, y = (torch.cat([arguments[i] for arguments in case.arguments]) for i in range(2))
    scale, shift = (case.arguments[0][i].clone().requires_grad_() for i in (2, 3))
    loss = ((x * scale + shift - y) ** 2).sum(1).mean()
    loss.backward()
    expected = (scale.grad, shift.grad, loss.detach())
    for ours, theirs in zip(mean_of_all(sums_of(case), 0), expected):
        torch.testing.assert_close(ours, theirs)


def test_some_rank_has_no_examples_and_never_all_of_them():
    for seed in range(50):
        for world_size in (2, 3, 4):
            counts = [
                [len(x) for x, *_ in case.arguments]
                for case in GRADER.cases(world_size, random.Random(seed))
            ]
            assert any(0 in each for each in counts) and all(any(each) for each in counts)


@pytest.mark.parametrize(
    ("call", "diagnosis"),
    [
        ("group.broadcast(shift, group.rank)", "ranks name different roots"),
        (
            "[group.all_reduce(shift) for _ in range(len(x) % 2)]",  # meets the next call
            "ranks pass different shapes",
        ),
        ("group.send(shift, 0)", "communicates past the group"),
    ],
)
def test_what_one_more_call_gets(tmp_path, call, diagnosis):
    solution = WORKSPACE.solution(NAME).read_text()
    file = tmp_path / "mine.py"
    file.write_text(
        solution.replace("    error = x * scale", f"    {call}\n    error = x * scale", 1)
    )
    # By its seed: how many calls that are depends on how long the inputs are.
    assert check(NAME, file, workspace=WORKSPACE, seed=1).diagnosis == diagnosis
