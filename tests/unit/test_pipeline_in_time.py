"""A schedule in time as text: every operation in its columns, and the bubble as dots."""

from dataclasses import replace

import pytest

from labkit.pipeline import Costs, Span, gpipe, in_time, interleaved, one_f_one_b, plan, simulate

EQUAL = Costs(forward=1, input_gradient=0.5, weight_gradient=0.5)


def test_gpipes_grid_is_the_textbooks():
    assert in_time(simulate(plan(gpipe, 3, 2), EQUAL)).splitlines() == [
        "rank 0  F0 F1 .  .  .  .  B0 B1",
        "rank 1  .  F0 F1 .  .  B0 B1 .",
        "rank 2  .  .  F0 F1 B0 B1 .  .",
    ]


def test_an_operation_of_two_units_has_two_columns_in_any_unit():
    grid = ["rank 0  F0 F1 .  .  B0 B0 .  B1 B1", "rank 1  .  F0 B0 B0 F1 B1 B1 .  ."]
    assert in_time(simulate(plan(one_f_one_b, 2, 2))).splitlines() == grid
    half = Costs(forward=0.5, input_gradient=0.5, weight_gradient=0.5)
    assert in_time(simulate(plan(one_f_one_b, 2, 2), half), unit=0.5).splitlines() == grid


@pytest.mark.parametrize("row", [gpipe, one_f_one_b, interleaved])
def test_columns_count_time_and_work(row):
    timing = simulate(plan(row, 4, 8))
    lines = [line.split()[2:] for line in in_time(timing, most=1000).splitlines()]
    assert {len(line) for line in lines} == {round(timing.makespan)}
    assert [sum(cell != "." for cell in line) for line in lines] == timing.busy
    assert ("F0@4" in lines[0]) == (row is interleaved)


def test_ranks_with_two_digits_stay_in_line_and_long_grids_end_in_dots():
    lines = in_time(simulate(plan(gpipe, 11, 9)), most=20).splitlines()
    assert {line.index("F0") - 3 * rank for rank, line in enumerate(lines)} == {9}
    assert all(line.endswith("...") for line in lines)
    assert "..." not in in_time(simulate(plan(gpipe, 2, 2)), most=9)


def test_times_between_columns_are_refused_and_the_error_says_what_to_do():
    with pytest.raises(ValueError, match="B0, at 2.5, .*unit=1"):
        in_time(simulate(plan(gpipe, 1, 1), Costs(weight_gradient=0.5)))
    with pytest.raises(ValueError, match="F0"):
        in_time(simulate(plan(gpipe, 1, 1), Costs(forward=0)))


def test_time_counts_from_the_first_start():
    timing = simulate(plan(gpipe, 2, 2))
    rows = tuple(tuple(Span(op, a + 7, b + 7) for op, a, b in row) for row in timing.rows)
    assert in_time(replace(timing, rows=rows)) == in_time(timing)
