"""A schedule that is no training step is refused, and the error shows the cell."""

import random
import re
from functools import partial

import numpy as np
import pytest

from labkit import viz
from labkit.pipeline import (
    Kind,
    Op,
    Schedule,
    ScheduleError,
    gpipe,
    in_flight,
    interleaved,
    measured,
    one_f_one_b,
    parse,
    peak_memory,
    plan,
    simulate,
    text,
    validate,
    weight_versions,
    zero_bubble_h1,
)

# By mistake: a schedule, the reason, and the mark of its cell.
WRONG = {
    "twice": ("F0 F0 B0\nF0 B0", r"F0 of stage 0 is there twice", "[F0]"),
    "forward missing": ("F0 F1 B0 B1\nF0 B0", "F1 of stage 1 is missing", "[...]"),
    "backward missing": ("F0 F1 B0\nF0 F1 B0 B1", "B1 of stage 0 is missing", "[...]"),
    "weights missing": ("F0 I0\nF0 B0", "W0 of stage 0 is missing", "[...]"),
    "weights twice": ("F0 I0 B0\nF0 B0", "B0 .* input's gradient again: I0 did", "[B0]"),
    "split and whole": ("F0 B0 W0\nF0 B0", "W0 .* weights' gradients again: B0 did", "[W0]"),
    "backward first": ("B0 F0\nF0 B0", "rank 0 has B0 before F0", "[B0]"),
    "weights first": ("F0 W0 I0\nF0 B0", "rank 0 has W0 before B0 or I0", "[W0]"),
    "stage elsewhere": ("F0 B0 F1@1 B1@1\nF0 B0", "F0 of stage 1 is on rank 1, and rank 0", "[F0"),
    "cycle": ("F0 B0 F1 B1\nF1 B1 F0 B0", "a deadlock: rank 0 .*; rank 1 waits at F1", "[B0]"),
    "cycle of virtual stages": (
        "F0@0 B0@0 F0@2 B0@2\nF0@1 F0@3 B0@3 B0@1",
        "a deadlock: rank 0 waits at B0@0 for B0@1 or I0@1 of rank 1; rank 1 waits at F0@3 for "
        "F0@2 of rank 0",
        "[B0@0]",
    ),
    "own later": ("F0@1 F0@0 B0@1 B0@0", "rank 0 has F0 of stage 1 before F0 of stage 0", "[F0@1]"),
    "hole": ("F0 F2 B0 B2\nF0 F2 B0 B2", "F1 of stage 0 is missing", "[...]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_first_wrong_cell_is_marked_and_its_reason_given(case):
    written, reason, mark = WRONG[case]
    with pytest.raises(ScheduleError, match=reason) as error:
        validate(parse(written))
    grid = str(error.value).split("\n", 1)[1]
    assert grid.count("[") == 1
    assert mark in grid


def test_a_cell_far_to_the_right_is_shown_with_its_neighbours_only():
    rows = [list(row) for row in plan(gpipe, 2, 100).rows]
    rows[1][150], rows[1][151] = rows[1][151], rows[1][150]
    rows[1][149] = rows[1][151]
    with pytest.raises(ScheduleError) as error:
        validate(plan_of(rows, 100))
    assert error.value.rank == 1
    grid = str(error.value).splitlines()[-2:]
    assert all(len(line) < 100 for line in grid)
    assert "[" in grid[1]


def plan_of(rows, num_microbatches):
    schedule = plan(gpipe, 2, num_microbatches)
    return type(schedule)("changed", tuple(map(tuple, rows)), 2, num_microbatches)


@pytest.mark.parametrize("row", [gpipe, one_f_one_b, zero_bubble_h1])
def test_every_schedule_with_one_operation_left_out_or_doubled_is_refused(row):
    schedule = plan(row, 3, 4)
    for rank, ops in enumerate(schedule.rows):
        for index in range(len(ops)):
            for changed in (ops[:index] + ops[index + 1 :], ops[:index] + ops[index:][:1] * 2):
                rows = list(schedule.rows)
                rows[rank] = changed
                with pytest.raises(ScheduleError):
                    validate(type(schedule)("changed", tuple(rows), 3, 4))


def test_a_shuffled_schedule_is_refused_or_runs_to_its_end():
    # Try whether an order can be performed: one operation at a time, ranks in turn.
    draw = random.Random(0)
    verdicts = set()
    for _ in range(300):
        schedule = plan(one_f_one_b, 3, 2)
        rows = [list(row) for row in schedule.rows]
        for _ in range(draw.randint(1, 2)):
            row = draw.choice(rows)
            i = draw.randrange(len(row) - 1)
            row[i], row[i + 1] = row[i + 1], row[i]
        shuffled = type(schedule)("shuffled", tuple(map(tuple, rows)), 3, 2)
        try:
            validate(shuffled)
            is_refused = False
        except ScheduleError:
            is_refused = True
        assert is_refused is not runs_to_its_end(rows), text(shuffled)
        verdicts.add(is_refused)
    assert verdicts == {True, False}


def runs_to_its_end(rows) -> bool:
    left, done = [list(row) for row in rows], set()
    while any(left):
        before = len(done)
        for stage, row in enumerate(left):
            if row:
                kind, _, i = row[0]
                needs = {
                    "F": {("F", stage - 1, i)} if stage else set(),
                    "B": {("F", stage, i)} | ({("B", stage + 1, i)} if stage < 2 else set()),
                }
                if needs[kind] <= done:
                    done.add((kind, stage, i))
                    row.pop(0)
        if len(done) == before:
            return False
    return True


@pytest.mark.parametrize("row", [gpipe, one_f_one_b, interleaved, zero_bubble_h1])
def test_a_schedule_survives_being_written_and_read(row):
    schedule = plan(row, 4, 8)
    assert parse(text(schedule), schedule.name) == schedule


@pytest.mark.parametrize("cell", ["X0", "F", "0F", "F-1", "F0@", "f0"])
def test_a_cell_that_is_no_operation_is_named(cell):
    with pytest.raises(ValueError, match=f"{cell!r} on rank 1"):
        parse(f"F0 B0\n{cell} B0")


def test_whole_numbers_of_numpy_are_whole_numbers():
    row = tuple(Op(kind, np.int64(0), np.int64(0)) for kind in (Kind.F, Kind.B))
    validate(Schedule("numpy", (row,), 1, np.int64(1)))


F0, B0 = Op(Kind.F, 0, 0), Op(Kind.B, 0, 0)


def of_rows(rows, num_stages=1, num_microbatches=1):
    return Schedule("x", rows, num_stages, num_microbatches)


# By mistake: what is given as a schedule, and the error, which names the value and what to give.
REFUSED = {
    "text": ("F0 B0", "TypeError: schedule='F0 B0': give a Schedule; .*parse from text"),
    "a function": (gpipe, "TypeError: schedule=<function gpipe.*: give a Schedule; plan makes"),
    "rows alone": (((F0, B0),), r"TypeError: schedule=\(\(Op.*: give a Schedule"),
    "no tuple of rows": (of_rows(None), "TypeError: schedule.rows=None: give a tuple"),
    "a row missing": (of_rows((None, (F0, B0))), r"TypeError: schedule.rows\[0\]=None: give a"),
    "rows of text": (of_rows(("F0 B0",)), r"TypeError: .*rows\[0\]='F0 B0': .*parse reads text"),
    "a row read once": (of_rows((iter((F0,)),)), r"TypeError: .*rows\[0\]=<tuple_iterator"),
    "cells of text": (of_rows((("F0", "B0"),)), r"TypeError: .*rows\[0\]\[0\]='F0': give Op"),
    "an idle cell": (of_rows(((F0, None, B0),)), r"TypeError: .*rows\[0\]\[1\]=None: give Op"),
    "a plain tuple": (of_rows(((F0, (Kind.B, 0, 0)),)), r"TypeError: .*rows\[0\]\[1\]=\(<Kind.B"),
    "a kind as text": (of_rows(((Op("F", 0, 0), B0),)), "TypeError: .*Op.kind='F'.* a Kind"),
    "a stage as float": (of_rows(((Op(Kind.F, 0.0, 0),),)), "TypeError: .*stage=0.0.* whole"),
    "no stages": (of_rows(((F0, B0),), 0), "ValueError: schedule.num_stages=0: 1 or more"),
    "half a stage": (of_rows(((F0, B0),), 0.5), "TypeError: schedule.num_stages=0.5: .* whole"),
    "no microbatches": (of_rows(((F0, B0),), 1, 0), "ValueError: schedule.num_microbatches=0"),
}
TAKES_A_SCHEDULE = [
    *(validate, simulate, in_flight, peak_memory, text, weight_versions),
    *(viz.schedule, viz.in_flight, lambda schedule: measured(schedule, [])),
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_schedule_of_operations_is_named(case):
    given, reason = REFUSED[case]
    for call in TAKES_A_SCHEDULE:
        with pytest.raises((TypeError, ValueError)) as error:
            call(given)
        assert re.match(reason, f"{error.type.__name__}: {error.value}"), call


def test_without_rows_there_is_no_rank():
    with pytest.raises(ValueError, match=r"schedule.rows=\(\): .* give one row for each"):
        validate(of_rows(()))


def test_a_row_left_out_lacks_its_operations():
    with pytest.raises(ScheduleError, match="F0 of stage 1 is missing"):
        validate(of_rows(plan(gpipe, 2, 2).rows[:1], 2, 2))
    with pytest.raises(ScheduleError, match="F0 of stage 1 is missing"):
        validate(of_rows((plan(gpipe, 2, 2).rows[0], ()), 2, 2))


def test_rows_in_lists_are_rows():
    validate(of_rows([list(row) for row in plan(gpipe, 2, 2).rows], 2, 2))


def nothing(rank, num_ranks, num_microbatches):
    return iter(())


def spelled(rank, num_ranks, num_microbatches):
    yield "F0"


def of_floats(rank, num_ranks, num_microbatches):
    yield Op(Kind.F, 0.0, 0)


def without_yield(rank, num_ranks, num_microbatches):
    pass


class Called:
    def __call__(self, rank, num_ranks, num_microbatches):
        return gpipe(rank, num_ranks, num_microbatches)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (nothing, "row=nothing: no rank has an operation; yield Op.kind"),
        (spelled, "row=spelled: row 0 has 'F0': give Op.kind"),
        (of_floats, r"row=of_floats: row 0 has Op.*stage=0.0"),
        (without_yield, "row=without_yield: .* returned None; yield Op"),
    ],
)
def test_rows_that_give_no_schedule_are_named(row, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        plan(row, 2, 2)


def test_a_callable_object_plans_under_the_name_of_its_class():
    schedule = plan(Called(), 2, 2)
    assert schedule.name == "Called" and schedule.rows == plan(gpipe, 2, 2).rows
    assert plan(partial(Called()), 2, 2).name == "Called"


def test_an_empty_text_is_no_schedule():
    with pytest.raises(ValueError, match="no lines"):
        parse("  ")
    with pytest.raises(TypeError, match="give text with a line per rank"):
        parse(["F0 B0", None])


def test_an_invalid_schedule_is_not_simulated():
    with pytest.raises(ScheduleError):
        simulate(parse("F0\nF0 B0"))
