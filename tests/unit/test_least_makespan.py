"""The least makespan by search is that of the best of all schedules, tried one by one."""

import math
from itertools import product

import pytest

from labkit.grade.puzzles.book import Problem
from labkit.pipeline import (
    Costs,
    Kind,
    Op,
    Schedule,
    ScheduleError,
    gpipe,
    in_flight,
    interleaved,
    one_f_one_b,
    peak_memory,
    plan,
    simulate,
    validate,
    zero_bubble_h1,
)
from tests.least_makespan import least_makespan

UNEVEN = Costs(forward=[1, 3], input_gradient=[2, 1], weight_gradient=[1, 4], send=2)
THREE = Costs(forward=[1, 2, 1], input_gradient=[1, 1, 3], weight_gradient=[1, 1, 1], send=[0, 2])
SEND = Costs(send=3)

# Small enough for all orders: a few hundred to a few thousand schedules each.
TINY = {
    "two microbatches": Problem((0, 1), 2),
    "three microbatches": Problem((0, 1), 3),
    "uneven, slow message": Problem((0, 1), 3, UNEVEN),
    "three ranks": Problem((0, 1, 2), 2),
    "three uneven ranks": Problem((0, 1, 2), 2, THREE),
    "split": Problem((0, 1), 2, is_split=True),
    "split, slow message": Problem((0, 1), 2, SEND, is_split=True),
    "split, uneven": Problem((0, 1), 2, UNEVEN, is_split=True),
    "split, half kept": Problem(
        (0, 1), 2, UNEVEN, is_split=True, activation=(2, 4), kept_for_weights=0.5
    ),
    "virtual stages": Problem((0, 1, 0, 1), 1, SEND, is_split=True),
    "a V": Problem((0, 1, 1, 0), 1, SEND, is_split=True),
    "two stages on a rank, one beside": Problem((0, 1, 0), 2, THREE),
    "alone": Problem((0,), 3, is_split=True),
}


def rows_of(problem: Problem, rank: int):
    """All orders of a rank's operations that have every F before its backward.

    Microbatches are numbered in the order in which the first stage takes them in.
    """
    ops = [
        Op(kind, stage, microbatch)
        for stage in range(problem.num_stages)
        if problem.placement[stage] == rank
        for microbatch in range(problem.num_microbatches)
        for kind in problem.kinds
    ]

    def extend(row, left):
        if not left:
            yield tuple(row)
        for op in left:
            earlier = problem.kinds[: problem.kinds.index(op.kind)]
            before = [Op(kind, op.stage, op.microbatch) for kind in earlier]
            if op[:2] == (Kind.F, 0):
                before += [op._replace(microbatch=number) for number in range(op.microbatch)]
            if not any(each in left for each in before):
                yield from extend([*row, op], [each for each in left if each != op])

    return extend([], ops)


def every_result(problem: Problem) -> set[tuple[float, tuple[float, ...]]]:
    """(makespan, memory by rank) of every schedule that there is."""
    found = set()
    for rows in product(*[list(rows_of(problem, rank)) for rank in range(problem.num_ranks)]):
        schedule = Schedule("tried", rows, problem.num_stages, problem.num_microbatches)
        try:
            makespan = simulate(schedule, problem.costs).makespan
        except ScheduleError:  # a deadlock
            continue
        found.add((makespan, tuple(memory_of(schedule, problem))))
    return found


def memory_of(schedule: Schedule, problem: Problem) -> list[float]:
    return peak_memory(schedule, [float(size) for size in problem.held], problem.kept_for_weights)


def makespan_of(problem: Problem, memory=None) -> float:
    """Return the makespan of the search's schedule; check that it is a step within the memory."""
    schedule = least_makespan(problem, memory)
    validate(schedule)
    for stage, rank in enumerate(problem.placement):
        assert schedule.rank_of[stage] == rank
    assert {op.kind for row in schedule.rows for op in row} == set(problem.kinds)
    limits = memory if isinstance(memory, list) else [memory or math.inf] * problem.num_ranks
    assert all(peak <= limit for peak, limit in zip(memory_of(schedule, problem), limits))
    return simulate(schedule, problem.costs).makespan


@pytest.mark.parametrize("name", TINY)
def test_no_schedule_of_all_is_shorter_within_any_memory(name):
    problem = TINY[name]
    results = every_result(problem)
    assert makespan_of(problem) == min(makespan for makespan, _ in results)
    for limits in {memory for _, memory in results}:
        best = min(
            makespan
            for makespan, memory in results
            if all(peak <= limit for peak, limit in zip(memory, limits))
        )
        assert makespan_of(problem, list(limits)) == best, limits


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 5), (3, 3), (3, 5), (4, 4)])
def test_one_f_one_b_is_the_best_within_its_memory_and_gpipe_no_faster_with_more(p, m):
    problem, row = Problem(tuple(range(p)), m), plan(one_f_one_b, p, m)
    assert makespan_of(problem, in_flight(row)) == simulate(row).makespan == 3 * (m + p - 1)
    assert makespan_of(problem) == simulate(plan(gpipe, p, m)).makespan


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 4), (3, 3), (3, 5)])
def test_zero_bubble_h1_is_the_best_of_split_backwards(p, m):
    problem, row = Problem(tuple(range(p)), m, is_split=True), plan(zero_bubble_h1, p, m)
    assert makespan_of(problem, p) == simulate(row).makespan == 3 * m + p - 1


def test_interleaving_is_the_best_of_virtual_stages():
    row = plan(interleaved, 2, 4, virtual=2)
    assert makespan_of(Problem((0, 1, 0, 1), 4)) == simulate(row).makespan
