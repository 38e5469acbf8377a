"""A schedule in time as text, a column per unit: where the bubble is can be seen.

    rank 0  F0 F1 F2 .  .  B0 B0 B1 B1 B2 B2
    rank 1  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .          a B of two units, a rank that waits: "."

For times that are whole numbers of a unit, as simulated ones are for whole costs.
"""

from __future__ import annotations

from labkit import arguments
from labkit.pipeline.text import lines
from labkit.pipeline.timing import Span, Timing

_ROUNDING = 1e-6  # of a unit


def in_time(timing: Timing, unit: float = 1.0, most: int = 40) -> str:
    """A line per rank from the first start on; what comes after `most` columns is "...".

    unit: the time of a column. ValueError for an operation that does not begin and end on a
    column's edge, or takes no time.
    """
    arguments.number("unit", unit, "above 0", above=0)
    arguments.whole("most", most, "1 or more")
    begins = min(row[0].start for row in timing.rows if row)
    cells = [
        [(name, _columns(name, span, begins, unit)) for name, span in zip(names, row, strict=True)]
        for names, row in zip(lines(timing.schedule), timing.rows, strict=True)
    ]
    num_columns = max(columns.stop for row in cells for _, columns in row)
    grid = [["."] * num_columns for _ in cells]
    for rank, row in enumerate(cells):
        for name, columns in row:
            grid[rank][columns.start : columns.stop] = [name] * len(columns)
    width = max(len(cell) for row in grid for cell in row)
    margin = len(f"rank {len(grid) - 1}")
    shown = [row[:most] + ["..."] * (num_columns > most) for row in grid]
    return "\n".join(
        f"{f'rank {rank}'.ljust(margin)}  {' '.join(cell.ljust(width) for cell in row)}".rstrip()
        for rank, row in enumerate(shown)
    )


def _columns(name: str, span: Span, begins: float, unit: float) -> range:
    first = _column(span.start - begins, unit, f"the start of {name}")
    behind = _column(span.end - begins, unit, f"the end of {name}")
    if behind == first:
        raise ValueError(f"{name} takes no time, and has no column; give it a cost of unit={unit}")
    return range(first, behind)


def _column(time: float, unit: float, what: str) -> int:
    column = round(time / unit)
    if abs(time / unit - column) > _ROUNDING:
        raise ValueError(
            f"{what}, at {time:g}, is no multiple of unit={unit:g}; give a unit that divides all "
            "times, or simulate with whole costs"
        )
    return column
