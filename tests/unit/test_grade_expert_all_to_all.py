"""The grader of expert_all_to_all: what it accepts, what cannot fool it, and its inputs."""

import random
from pathlib import Path

import pytest
import torch

from labkit.collectives import pairwise_all_to_all
from labkit.grade import check
from labkit.grade.graders import expert_inputs, expert_theories
from labkit.grade.graders.expert_all_to_all import GRADER
from labkit.grade.graders.expert_inputs import given_in
from labkit.grade.graders.expert_theories import MISTAKES, Rules, is_telling, outputs
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "expert_all_to_all"


def gathers_the_counts(x_TD, expert_T, num_experts, apply, group):
    """Everybody's counts on every rank; rows that have come are sorted once more, by expert."""
    n, first = group.size, group.rank * num_experts // group.size
    here = range(first, first + num_experts // n)
    counts_E = (expert_T[:, None] == torch.arange(num_experts)).sum(0)
    counts_nE = group.all_gather(counts_E[None])
    sizes_nn = counts_nE.view(n, n, -1).sum(2).tolist()
    send, receive = sizes_nn[group.rank], [row[group.rank] for row in sizes_nn]
    order_T = expert_T.argsort()
    rows = group.all_to_all(x_TD.index_select(0, order_T), send, receive)
    labels = torch.arange(num_experts).repeat(n).repeat_interleave(counts_nE.flatten())
    labels = labels[(labels >= here.start) & (labels < here.stop)]
    results = torch.zeros_like(rows)
    for expert in here:
        if (labels == expert).any():
            results[labels == expert] = apply(expert, rows[labels == expert])
    return group.all_to_all(results, receive, send)[order_T.argsort()]


def in_lists(x_TD, expert_T, num_experts, apply, group):
    """A list of tokens for each expert, without a sort; int32 counts; under way together."""
    lists = [[t for t, e in enumerate(expert_T.tolist()) if e == i] for i in range(num_experts)]
    here = num_experts // group.size
    counts = torch.tensor([len(each) for each in lists], dtype=torch.int32)
    told = group.all_to_all(counts, wait=False).wait().view(group.size, here).tolist()
    send = [sum(map(len, lists[r * here : (r + 1) * here])) for r in range(group.size)]
    receive = [sum(each) for each in told]
    flat = [t for each in lists for t in each]
    rows = group.all_to_all(x_TD[torch.tensor(flat, dtype=torch.int64)], send, receive)
    places, start = [[] for _ in range(here)], 0
    for each in told:
        for i, number in enumerate(each):
            places[i] += range(start, start + number)
            start += number
    results = rows.clone()
    for i, its in enumerate(places):
        results[its] = apply(group.rank * here + i, rows[its])
    y_TD = x_TD.clone()
    y_TD[flat] = group.all_to_all(results, receive, send)
    return y_TD


@pytest.mark.parametrize("program", [gathers_the_counts, in_lists])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def returns_nothing(x_TD, expert_T, num_experts, apply, group):
    in_lists(x_TD, expert_T, num_experts, apply, group)


def returns_a_list(x_TD, expert_T, num_experts, apply, group):
    return in_lists(x_TD, expert_T, num_experts, apply, group).tolist()


def returns_a_sparse_tensor(x_TD, expert_T, num_experts, apply, group):
    return in_lists(x_TD, expert_T, num_experts, apply, group).to_sparse()


def returns_float64(x_TD, expert_T, num_experts, apply, group):
    return in_lists(x_TD, expert_T, num_experts, apply, group).double()


def one_row_too_few(x_TD, expert_T, num_experts, apply, group):
    return in_lists(x_TD, expert_T, num_experts, apply, group)[:-1]


def nan_in_a_row(x_TD, expert_T, num_experts, apply, group):
    y_TD = in_lists(x_TD, expert_T, num_experts, apply, group)
    y_TD[:1] = torch.nan
    return y_TD


def two_rows_change_places(x_TD, expert_T, num_experts, apply, group):
    y_TD = in_lists(x_TD, expert_T, num_experts, apply, group)
    return torch.cat([y_TD[1:2], y_TD[:1], y_TD[2:]])


def applied_twice(x_TD, expert_T, num_experts, apply, group):
    def twice(expert, rows):
        return apply(expert, apply(expert, rows))

    return in_lists(x_TD, expert_T, num_experts, twice, group)


def sorts_the_experts_in_place(x_TD, expert_T, num_experts, apply, group):
    y_TD = in_lists(x_TD, expert_T, num_experts, apply, group)
    expert_T.copy_(expert_T.sort().values)
    return y_TD


def a_row_too_wide_for_an_expert(x_TD, expert_T, num_experts, apply, group):
    return in_lists(x_TD, expert_T, num_experts, lambda expert, rows: apply(expert, rows.T), group)


def the_collectives_of_the_lab(x_TD, expert_T, num_experts, apply, group):
    pairwise_all_to_all(x_TD[: len(x_TD) // group.size * group.size], group)
    return in_lists(x_TD, expert_T, num_experts, apply, group)


def the_theories_of_the_grader(x_TD, expert_T, num_experts, apply, group):
    expert_theories.outputs(
        expert_theories.Rules(),
        expert_inputs.Given([x_TD], [expert_T], torch.zeros(num_experts, 1 + x_TD.shape[1])),
    )
    return in_lists(x_TD, expert_T, num_experts, apply, group)


def never_waits(x_TD, expert_T, num_experts, apply, group):
    group.all_to_all(torch.zeros(group.size), wait=False)
    return in_lists(x_TD, expert_T, num_experts, apply, group)


WRONG = {
    returns_nothing: "returns nothing",
    returns_a_list: "returns something that is no tensor",
    returns_a_sparse_tensor: "returns something that is no tensor",
    returns_float64: "returns another dtype",
    one_row_too_few: "returns another shape",
    nan_in_a_row: "numbers that nobody has computed",
    two_rows_change_places: "rows of other tokens",
    applied_twice: "an expert is applied twice",
    sorts_the_experts_in_place: "changes its input",
    a_row_too_wide_for_an_expert: "raises ValueError",
    the_theories_of_the_grader: "calls the answer itself",
    never_waits: "never waits for an operation",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_what_is_wrong_is_named(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def test_another_all_to_all_of_the_lab_is_refused():
    verdict = check(NAME, the_collectives_of_the_lab, workspace=WORKSPACE)
    assert not verdict and verdict.diagnosis in (
        "calls the answer itself",
        "calls another operation than the two",
    ), verdict


THROUGH_FILES = """\
    import os, time
    calls = globals().setdefault("CALLS", [])
    calls.append(None)
    path = f"FOLDER/{group.size}-{len(calls)}-"
    torch.save([part.clone() for part in torch.cat(parts).split(receive)], f"{path}{group.rank}.x")
    os.replace(f"{path}{group.rank}.x", f"{path}{group.rank}")
    while not all(os.path.exists(f"{path}{other}") for other in range(group.size)):
        time.sleep(0.001)
    back = [torch.load(f"{path}{other}")[group.rank] for other in range(group.size)]
"""
BACK = "    y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)\n"


@pytest.mark.parametrize(
    ("new", "diagnosis"),
    [
        ("    y_TD[order_T] = torch.cat(back)\n", "fewer bytes than the rows have"),
        (BACK + "    y_TD[order_T] = torch.cat(back)\n", "the result does not come from the "),
    ],
)
def test_results_through_files_are_found_out(new, diagnosis, tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    assert BACK in solution
    text = solution.replace(BACK, THROUGH_FILES.replace("FOLDER", str(tmp_path)) + new)
    file = tmp_path / "mine.py"
    file.write_text(text)
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis.startswith(diagnosis), verdict


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_inputs_cover_what_goes_wrong_with_experts(world_size, seed):
    cases = GRADER.cases(world_size, random.Random(seed))
    given = [given_in(case) for case in cases]
    first = given[0]
    assert is_telling(first) and first.num_here >= 2
    assert len({len(rows) for rows in first.tokens}) == world_size, "no two ranks have as many"
    for each in given:
        assert each.num_experts % world_size == 0 and each.counts.sum() == sum(
            len(rows) for rows in each.tokens
        )
        rows = torch.cat(list(each.tokens))
        assert len(rows.unique(dim=0)) == len(rows) or rows.shape[1] == 1, "rows are told apart"
        assert all(out.abs().max() < 2**24 for out in each.expected if len(out)), "exact"
    assert any((each.counts.sum(0) == 0).any() and each.counts.any() for each in given)
    assert any(each.num_here == 1 for each in given)
    assert any(not each.counts.any() for each in given)
    assert any((each.counts == 2).all() for each in given)
    assert {each.weights.dtype for each in given} == {torch.float32, torch.float64}
    if world_size > 1:
        assert any((each.counts.sum(1) == 0).any() and each.counts.any() for each in given)
        here = [each.counts.sum(0).view(world_size, -1).sum(1) for each in given]
        assert any((each == 0).any() and each.any() for each in here), "a rank gets nothing"
        rank, number = cases[-1].altered
        assert 0 <= rank < world_size and number == 3 and (given[-1].counts > 0).all()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_rank_sends_less_than_its_rows(world_size):
    for case in GRADER.cases(world_size, random.Random(1)):
        given = given_in(case)
        away = [
            sum(int(e) // given.num_here != rank for e in experts)
            for rank, experts in enumerate(given.experts)
        ]
        coming = [
            sum(
                int(e) // given.num_here == rank
                for other, experts in enumerate(given.experts)
                for e in experts
                if other != rank
            )
            for rank in range(world_size)
        ]
        assert given.sent_rows == [one + other for one, other in zip(away, coming)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_rules_as_they_stand_are_right(world_size):
    for case in GRADER.cases(world_size, random.Random(2)):
        given = given_in(case)
        assert all(map(torch.equal, outputs(Rules(), given), given.expected))


def test_every_theory_has_a_mistake_of_its_own():
    given = given_in(GRADER.cases(3, random.Random(4))[0])
    made = [torch.cat(outputs(each.rules, given)) for each in MISTAKES]
    for i, one in enumerate(made):
        assert not torch.equal(one, torch.cat(given.expected)), MISTAKES[i]
        assert not any(torch.equal(one, other) for other in made[:i]), MISTAKES[i]
