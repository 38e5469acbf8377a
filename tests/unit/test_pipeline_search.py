"""The least makespan by search is that of the best of all schedules, tried one by one."""

import math
from itertools import permutations, product

import numpy as np
import pytest

import labkit.pipeline.search
from labkit.pipeline import (
    Costs,
    Kind,
    Op,
    Problem,
    Schedule,
    ScheduleError,
    gpipe,
    in_flight,
    interleaved,
    least_makespan,
    one_f_one_b,
    peak_memory,
    plan,
    simulate,
    trade_off,
    validate,
    zero_bubble_h1,
)

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
        (0, 1), 2, UNEVEN, is_split=True, activation=[2, 4], kept_for_weights=0.5
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
    """Of the search's schedule, which must be a step within the memory, on the right ranks."""
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


def test_enumeration_meets_what_a_search_must_weigh():
    """The cases above are no trifles: memory costs time, and waiting can be better than working."""
    results = every_result(TINY["split, half kept"])
    assert len({makespan for makespan, _ in results}) > 5
    assert len(trade_off(TINY["split, slow message"])) > 1


def test_labels_of_microbatches_do_not_matter():
    """Any other numbering of a shortest schedule is as long, so one of them is enough to try."""
    problem = Problem((0, 1), 3, UNEVEN)
    schedule = least_makespan(problem)
    for numbers in permutations(range(3)):
        rows = [[op._replace(microbatch=numbers[op.microbatch]) for op in r] for r in schedule.rows]
        renamed = Schedule("renamed", tuple(map(tuple, rows)), 2, 3)
        assert simulate(renamed, UNEVEN).makespan == makespan_of(problem)


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


@pytest.mark.parametrize("problem", [*TINY.values(), Problem((0, 1, 2), 4, SEND)])
def test_more_memory_never_costs_time(problem):
    least = max(problem.least_memory)
    makespans = [makespan_of(problem, least + extra) for extra in range(5)]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] >= makespan_of(problem)


def test_the_trade_off_lists_each_memory_that_saves_time():
    assert trade_off(Problem((0, 1, 2), 4)) == {1: 36, 2: 21, 3: 18}
    table = trade_off(Problem((0, 1), 4, Costs(send=2)))
    assert list(table) == sorted(table)
    for memory, makespan in table.items():
        assert makespan_of(Problem((0, 1), 4, Costs(send=2)), memory) == makespan
    assert len(set(table.values())) == len(table)


def test_costs_in_a_common_unit_scale_the_answer():
    costs = Costs(forward=700, input_gradient=1400, weight_gradient=700, send=2100)
    small = Costs(forward=1, input_gradient=2, weight_gradient=1, send=3)
    assert makespan_of(Problem((0, 1), 3, costs)) == 700 * makespan_of(Problem((0, 1), 3, small))


def test_a_rank_may_have_less_memory_than_another():
    assert makespan_of(Problem((0, 1, 2), 4), [3, 2, 1]) == 18
    assert makespan_of(Problem((0, 1, 2), 4), [3, 1, 1]) > 18


def test_memory_with_which_there_is_no_step_is_refused():
    problem = Problem((0, 1, 1, 0), 2)
    with pytest.raises(ValueError, match=r"memory=1 on rank 0: without 2 there is no step"):
        least_makespan(problem, 1)
    with pytest.raises(ValueError, match="memory has 3 limits for 2 ranks"):
        least_makespan(problem, [2, 2, 2])
    assert makespan_of(problem, 2) <= problem.serial


def test_what_is_too_large_is_refused():
    with pytest.raises(ValueError, match="256 operations are too many"):
        least_makespan(Problem(tuple(range(8)), 16))


def test_a_search_that_takes_too_long_ends(monkeypatch):
    monkeypatch.setattr("labkit.pipeline.search._MOST_SITUATIONS", 10)
    with pytest.raises(ValueError, match="no answer after 10 partial schedules"):
        least_makespan(Problem((0, 1, 2), 4, is_split=True), 2)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"placement": (0, 2)}, "none left out"),
        ({"num_microbatches": 0}, "1 or more"),
        ({"costs": Costs(forward=0)}, "the cost of F is 0"),
        ({"costs": Costs(send=0.5)}, "send is 0.5: .* take a smaller unit"),
        ({"costs": Costs(forward=[1, 1, 1])}, "3 costs, and 2 are needed"),
        ({"activation": [1]}, "1 sizes for 2 stages"),
        ({"activation": 1, "kept_for_weights": 0.5, "is_split": True}, "what an I leaves is 0.5"),
    ],
)
def test_numbers_that_cannot_be_are_refused(choices, reason):
    with pytest.raises(ValueError, match=reason):
        Problem(**{"placement": (0, 1), "num_microbatches": 2, **choices})


def test_a_problem_counts_in_kinds():
    assert Problem((0, 1), 1).cost(Kind.B, 0) == 2
    assert Problem((0, 1), 1, is_split=True).kinds == (Kind.F, Kind.I, Kind.W)


@pytest.mark.parametrize("unit", [1000, 64 * 2**20])
@pytest.mark.parametrize("sizes", [1, (1, 3)])
def test_the_trade_off_of_memory_in_bytes_is_that_in_microbatches(unit, sizes, monkeypatch):
    searched = []
    search = labkit.pipeline.search.least_makespan
    monkeypatch.setattr(
        "labkit.pipeline.search.least_makespan",
        lambda problem, memory=None: searched.append(memory) or search(problem, memory),
    )
    small = trade_off(Problem((0, 1), 3, activation=sizes))
    in_bytes = [unit * size for size in sizes] if sizes != 1 else unit
    table = trade_off(Problem((0, 1), 3, activation=in_bytes))
    assert table == {unit * memory: makespan for memory, makespan in small.items()}
    assert len(searched) < 40


def test_the_trade_off_of_sizes_without_a_common_unit_ends_and_is_exact():
    problem = Problem((0, 1), 3, activation=[2**26, 1])
    table = trade_off(problem)
    assert list(table) == [2**26, 2 * 2**26]
    for memory, makespan in table.items():
        assert makespan_of(problem, memory) == makespan
    assert makespan_of(problem, 2 * 2**26 - 1) == table[2**26]


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"placement": ()}, r"placement=\(\): give by stage its rank"),
        ({"placement": 3}, "placement=3: give by stage its rank"),
        ({"placement": "01"}, "placement='01': give by stage its rank"),
        ({"placement": (0, 1.0)}, r"placement\[1\]=1.0: give a whole number"),
        ({"num_microbatches": 2.5}, "num_microbatches=2.5: give a whole number"),
        ({"num_microbatches": True}, "num_microbatches=True: give a whole number"),
        ({"is_split": "no"}, "is_split='no': give True or False"),
        ({"kept_for_weights": 2}, "kept_for_weights=2: 0 to 1"),
        ({"activation": math.nan}, "activation=nan: a whole number"),
        ({"activation": "12"}, "activation='12': give a number"),
        ({"costs": 3}, "costs=3: give Costs"),
    ],
)
def test_what_is_no_problem_is_named(choices, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        Problem(**{"placement": (0, 1), "num_microbatches": 2, **choices})


def test_a_placement_may_be_any_list_of_whole_numbers():
    for placement in ([0, 1], np.array([0, 1]), range(2)):
        assert Problem(placement, 2) == Problem((0, 1), 2)
