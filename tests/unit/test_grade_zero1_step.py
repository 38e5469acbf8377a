"""The grader of zero1_step: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch

from labkit import Group
from labkit.collectives import ring_reduce_scatter
from labkit.grade import check
from labkit.grade.evidence import Case
from labkit.grade.graders.gradient_values import is_close
from labkit.grade.graders.zero1_inputs import given_in, random_cases
from labkit.grade.graders.zero1_theories import mistakes
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "zero1_step"


def in_two_halves(parameters, gradients, optimizer, group):
    """Two reduce-scatters and two all-gathers, into one segment of strided pieces."""
    n, numel = group.size, parameters.numel()
    rows = -(-numel // n)
    weights, means = torch.zeros(2, rows * n, dtype=parameters.dtype)
    weights[:numel], means[:numel] = parameters, gradients / n
    cut = rows // 2 * n
    pieces = [group.reduce_scatter(part) for part in (means[:cut], means[cut:]) if len(part)]
    own = [part.tensor_split(n)[group.rank] for part in (weights[:cut], weights[cut:]) if len(part)]
    segment = torch.cat(own)
    optimizer.step(segment, torch.cat(pieces))
    parts = segment.split([len(each) for each in own])
    parameters[...] = torch.cat([group.all_gather(part) for part in parts])[:numel]


def without_padding_in_the_states(parameters, gradients, optimizer, group):
    """Only numbers that exist are stepped; the rest of the last segment is made up again."""
    n, numel = group.size, parameters.numel()
    k = -(-numel // n)
    flat = torch.cat([gradients, gradients.new_zeros(n * k - numel)])
    gradient = group.reduce_scatter(flat) / n
    own = parameters[group.rank * k : (group.rank + 1) * k]
    if len(own):
        optimizer.step(own, gradient[: len(own)])
    segment = torch.cat([own, own.new_zeros(k - len(own))])
    parameters.copy_(group.all_gather(segment)[:numel])


def round_robin_with_gradients_in_place(parameters, gradients, optimizer, group):
    """Rank r has the numbers r, r + n, ...; and the gradients' memory is used again."""
    n, numel = group.size, parameters.numel()
    k = -(-numel // n)

    def laid(x):
        return torch.cat([x, x.new_zeros(n * k - numel)]).view(k, n).t().flatten()

    gradients /= n
    segment = laid(parameters).view(n, k)[group.rank].clone()
    optimizer.step(segment, group.reduce_scatter(laid(gradients)))
    parameters[:] = group.all_gather(segment).view(n, k).t().flatten()[:numel]


@pytest.mark.parametrize(
    "program",
    [in_two_halves, without_padding_in_the_states, round_robin_with_gradients_in_place],
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def gathers_all_gradients(parameters, gradients, optimizer, group):
    """Everybody gets everybody's gradients."""
    n, numel = group.size, parameters.numel()
    k = -(-numel // n)
    mean = group.all_gather(gradients).view(n, numel).mean(0)
    weights, means = torch.zeros(2, n * k, dtype=parameters.dtype)
    weights[:numel], means[:numel] = parameters, mean
    segment = weights.tensor_split(n)[group.rank]
    optimizer.step(segment, means.tensor_split(n)[group.rank])
    parameters.copy_(group.all_gather(segment)[:numel])


def labkits_own(parameters, gradients, optimizer, group):
    ring_reduce_scatter(gradients, group)


def by_broadcast(parameters, gradients, optimizer, group):
    group.broadcast(parameters, 0)


def through_another_group(parameters, gradients, optimizer, group):
    Group.default().all_reduce(gradients)


def pads_each_to_many(parameters, gradients, optimizer, group):
    """Segments of a hundred."""
    n, numel = group.size, parameters.numel()
    weights, means = torch.zeros(2, n * 100, dtype=parameters.dtype)
    weights[:numel], means[:numel] = parameters, gradients
    segment = weights.tensor_split(n)[group.rank]
    optimizer.step(segment, group.reduce_scatter(means, op="mean"))
    parameters.copy_(group.all_gather(segment)[:numel])


def steps_twice(parameters, gradients, optimizer, group):
    """The first half of the segment, then the second."""
    n, numel = group.size, parameters.numel()
    k = -(-numel // n)
    weights, means = torch.zeros(2, n * k, dtype=parameters.dtype)
    weights[:numel], means[:numel] = parameters, gradients
    segment = weights.tensor_split(n)[group.rank]
    gradient = group.reduce_scatter(means, op="mean")
    for half in (slice(0, k // 2), slice(k // 2, k)):
        optimizer.step(segment[half].clone(), gradient[half])
    optimizer.step(segment, gradient)


WRONG = {
    gathers_all_gradients: "sends more than an all-reduce",
    labkits_own: "calls another operation than the three",
    by_broadcast: "calls another operation than the three",
    through_another_group: "calls another operation than the three",
    pads_each_to_many: "keeps the states of all parameters",
    steps_twice: "raises ValueError",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_mistake_looks_like_a_right_answer_or_another_whatever_the_seed(world_size):
    for seed in range(20):
        cases = random_cases(world_size, random.Random(seed))
        for case in cases[:2]:
            _all_differ(case)


def _all_differ(case: Case):
    given, n = given_in(case), len(case.arguments)
    results = {"right": [[given.right()[0]] * n]}
    for each in mistakes(given):
        if each.name == "forgets the remainder" and given.parameters.numel() % n == 0:
            continue
        results.setdefault(each.name, []).append([each.parameters(rank) for rank in range(n)])
    named = [(name, result) for name, all_of in results.items() for result in all_of]
    for name, result in named:
        for other, its in named:
            same = all(is_close(one, two) for one, two in zip(result, its))
            assert name == other or not same, (name, other, case.label)


def test_there_are_sizes_that_n_does_not_divide_and_a_rank_without_any_parameter():
    numels = [given_in(case).parameters.numel() for case in random_cases(4, random.Random(1))]
    assert {numel % 4 for numel in numels} == {0, 1, 3} and min(numels) < 4
