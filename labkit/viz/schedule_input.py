"""What pictures of a schedule are drawn from: a Timing, or a Schedule, which is simulated first."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

from labkit.pipeline import Op, Schedule, Timing, simulate
from labkit.pipeline.simulation import Span

# More rows and narrower boxes than these cannot be told from each other on a page.
MAX_RANKS, MAX_OPS = 32, 8192


def timing_of(given: Any, name: str = "timing") -> Timing:
    """The Timing itself, or that of a Schedule whose operations cost 1 each (B 2), messages 0.

    TypeError for what is neither. ValueError for a Timing of other operations than its schedule's,
    for times that are no times, and for more than can be drawn; ScheduleError for what is no step.
    """
    if not isinstance(given, Schedule | Timing):
        raise TypeError(
            f"{name}={_shown(given)}: give a Timing, such as simulate(plan(one_f_one_b, 4, 8)), or "
            "a Schedule"
        )
    _check_size(given if isinstance(given, Schedule) else given.schedule)
    if isinstance(given, Schedule):
        return simulate(given)
    _check_rows(given, name)
    _check_times(given, name)
    return given


def require_same_schedule(timing: Timing, measured: Timing) -> None:
    """ValueError, which names the first operation that differs, unless both are of one schedule."""
    mine, other = timing.schedule, measured.schedule
    counts = [(one.num_ranks, one.num_stages, one.num_microbatches) for one in (mine, other)]
    if counts[0] != counts[1]:
        told = [f"{r} ranks, {s} stages and {m} microbatches" for r, s, m in counts]
        raise ValueError(
            f"measured is of {told[1]}, timing of {told[0]}: measure the same schedule"
        )
    for rank, (row, measured_row) in enumerate(zip(mine.rows, other.rows)):
        if row != measured_row:
            place, expected, there = _first_difference(row, measured_row)
            raise ValueError(
                f"measured is of another schedule: operation {place} of rank {rank} is {there}, "
                f"and {expected} in timing; measure the schedule that was simulated"
            )


def require_drawable(ranks: int, num_ops: int) -> None:
    """ValueError for more ranks or operations than can be told from each other."""
    if ranks > MAX_RANKS or num_ops > MAX_OPS:
        raise ValueError(
            f"{ranks} ranks with {num_ops:,} operations: a grid that can be read has at most "
            f"{MAX_RANKS} ranks and {MAX_OPS:,} operations; draw fewer microbatches (the pattern "
            "repeats), and take the numbers from simulate(...).bubble() and in_flight(...)"
        )


def _check_size(schedule: Schedule) -> None:
    num_ops = sum(map(len, schedule.rows))
    require_drawable(schedule.num_ranks, num_ops)
    if not num_ops:
        raise ValueError(f"{schedule.name} has no operations: there is nothing to draw")


def _check_rows(timing: Timing, name: str) -> None:
    rows = timing.schedule.rows
    if len(timing.rows) != len(rows):
        raise ValueError(f"{name} has {len(timing.rows)} rows for {len(rows)} ranks: one for each")
    for rank, (spans, row) in enumerate(zip(timing.rows, rows)):
        ops = tuple(span.op for span in spans)
        if ops != row:
            place, wants, has = _first_difference(row, ops)
            raise ValueError(
                f"{name} has {has} as operation {place} of rank {rank}, and its own schedule "
                f"{wants}: a Timing has a Span for each operation, in the schedule's order"
            )


def _check_times(timing: Timing, name: str) -> None:
    for rank, row in enumerate(timing.rows):
        before: Span | None = None
        for span in row:
            is_time = math.isfinite(span.start) and math.isfinite(span.end)
            if not is_time or span.end < span.start:
                raise ValueError(
                    f"{name}: {span.op} of rank {rank} is from {span.start} to {span.end}; give "
                    "finite times, the end not before the start"
                )
            if before is not None and span.start < before.end:
                raise ValueError(
                    f"{name}: {span.op} of rank {rank} begins at {span.start}, before the end of "
                    f"{before.op} at {before.end}: a rank does one operation at a time"
                )
            before = span


def require_some_time(timing: Timing, name: str) -> None:
    """ValueError for a schedule that takes no time at all: there are no boxes to draw."""
    if timing.makespan <= 0:
        raise ValueError(
            f"{name} takes no time from start to end: there is nothing to draw; give costs above 0"
        )


def _first_difference(one: tuple[Op, ...], other: tuple[Op, ...]) -> tuple[int, str, str]:
    """Its place, and what stands there in each of two rows, which are not equal."""
    pairs = enumerate(zip_longest(one, other))
    place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    return place, _cell(mine), _cell(theirs)


def _cell(op: Op | None) -> str:
    return f"{op} of stage {op.stage}" if op else "nothing"


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
