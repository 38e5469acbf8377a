"""The input of schedule pictures: a Timing, or a Schedule, which is simulated first."""

from __future__ import annotations

from itertools import zip_longest

from labkit.pipeline import Op, Schedule, Timing, simulate
from labkit.pipeline.op import require_schedule

# More rows and narrower boxes than these cannot be distinguished on a page.
MAX_RANKS, MAX_OPS = 32, 8192


def timing_of(given: Schedule | Timing) -> Timing:
    """Return the Timing, or that of a Schedule whose operations cost 1 each (B 2), messages 0.

    ValueError for more than can be drawn; ScheduleError if it is not a whole step.
    """
    if isinstance(given, Timing):
        _check_size(given.schedule)
        return given
    require_schedule(given)
    _check_size(given)
    return simulate(given)


def require_same_schedule(timing: Timing, measured: Timing) -> None:
    """Raise ValueError, naming the first different operation, unless both are of one schedule."""
    mine, other = timing.schedule, measured.schedule
    counts = [(one.num_ranks, one.num_stages, one.num_microbatches) for one in (mine, other)]
    if counts[0] != counts[1]:
        sizes = [f"{r} ranks, {s} stages and {m} microbatches" for r, s, m in counts]
        raise ValueError(
            f"measured is of {sizes[1]}, timing of {sizes[0]}: measure the same schedule"
        )
    for rank, (row, measured_row) in enumerate(zip(mine.rows, other.rows)):
        if row != measured_row:
            place, expected, there = _first_difference(row, measured_row)
            raise ValueError(
                f"measured is of another schedule: operation {place} of rank {rank} is {there}, "
                f"and {expected} in timing; measure the schedule that was simulated"
            )


def require_drawable(ranks: int, num_ops: int) -> None:
    """Raise ValueError for more ranks or operations than can be distinguished."""
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


def require_some_time(timing: Timing, name: str) -> None:
    """Raise ValueError for a schedule that takes no time: there are no boxes to draw."""
    if timing.makespan <= 0:
        raise ValueError(
            f"{name} takes no time from start to end: there is nothing to draw; give costs above 0"
        )


def _first_difference(one: tuple[Op, ...], other: tuple[Op, ...]) -> tuple[int, str, str]:
    """Return the place of the first difference of two rows, and both operations there."""
    pairs = enumerate(zip_longest(one, other))
    place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    return place, _cell(mine), _cell(theirs)


def _cell(op: Op | None) -> str:
    return f"{op} of stage {op.stage}" if op else "nothing"
