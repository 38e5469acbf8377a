"""The rows of a schedule's grid: a box per operation, from its start to its end.

rank 0  |0|1|2|3|        | 0 | 1 | 2 | 3 |        white: idle
rank 1    |0|1|2|3|    | 0 | 1 | 2 | 3 |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from labkit.pipeline import Schedule, Timing
from labkit.viz import style
from labkit.viz.schedule_colours import IDLE, operation_colour
from labkit.viz.schedule_numbers import Number, draw_numbers

# Of a row of height 1: the gap between rows is where messages are drawn.
TOP, BOTTOM = 0.12, 0.88
_FEW_ARROWS = 60  # more is a thicket


class Box(NamedTuple):
    """An operation on the page. left, right: in the axis' unit, 0 where the first one starts."""

    rank: int
    left: float
    right: float
    colour: str
    label: str


def boxes(timing: Timing, per_time: float = 1.0) -> list[Box]:
    """One for each operation. per_time: units of the axis in one of the timing."""
    first = started(timing)
    num_places = most_stages(timing.schedule)
    found = []
    for rank, row in enumerate(timing.rows):
        place = {stage: n for n, stage in enumerate(timing.schedule.stages_of(rank))}
        for (kind, stage, microbatch), start, end in row:
            left, right = ((time - first) * per_time for time in (start, end))
            colour = operation_colour(kind, place[stage], num_places)
            found.append(Box(rank, left, right, colour, str(microbatch)))
    return found


def started(timing: Timing) -> float:
    """When the first operation starts: 0 of the axis."""
    return min(row[0].start for row in timing.rows if row)


def most_stages(schedule: Schedule) -> int:
    """v: of how many stages a rank holds, the largest."""
    return max(len(schedule.stages_of(rank)) for rank in range(schedule.num_ranks))


def draw_boxes(axes: Axes, found: list[Box], num_ranks: int, width_points: float) -> None:
    """`axes`: y grows downwards with one unit per rank, x from 0 to the last end.

    width_points: of the axes on the page. Numbers that do not fit their box are left out.
    """
    last = axes.get_xlim()[1]
    points_per_unit = width_points / last
    corners = [(0.0, last, rank) for rank in range(num_ranks)]
    frames = _rectangles(corners, [IDLE] * num_ranks, style.GRID, 0.7)
    frames.set_zorder(1)  # messages that cross a row are over its idle time, and behind its boxes
    axes.add_collection(frames, autolim=False)
    widths = [(box.right - box.left) * points_per_unit for box in found]
    edges = [0.7 if width > 3 else 0.0 for width in widths]
    corners = [(box.left, box.right, box.rank) for box in found]
    colours = [box.colour for box in found]
    axes.add_collection(_rectangles(corners, colours, "white", edges), autolim=False)
    draw_numbers(
        axes,
        [
            Number(box.label, (box.left + box.right) / 2, box.rank + 0.5, width, box.colour)
            for box, width in zip(found, widths)
        ],
    )


def _rectangles(
    corners: list[tuple[float, float, int]],
    colours: list[str],
    edge: str,
    edges: float | list[float],
) -> PolyCollection:
    # An array, because matplotlib makes paths of a list one by one.
    outlines: Any = np.array(
        [
            [(x0, row + TOP), (x1, row + TOP), (x1, row + BOTTOM), (x0, row + BOTTOM)]
            for x0, x1, row in corners
        ]
    )
    return PolyCollection(outlines, facecolors=colours, edgecolors=edge, linewidths=edges, zorder=2)


def draw_messages(axes: Axes, timing: Timing, per_time: float = 1.0) -> bool:
    """An arrow for each message that takes time, from its operation to where it is needed.

    None where there are too many to follow. Returns whether there are any.
    """
    sends = [span for span in timing.sends if span.end > span.start]
    if not 0 < len(sends) <= _FEW_ARROWS:
        return False
    first = started(timing)
    rank_of = timing.schedule.rank_of
    for (kind, stage, _), start, end in sends:
        source, there = rank_of[stage], rank_of[stage + (1 if kind == "F" else -1)]
        is_down = there > source
        axes.annotate(
            "",
            xy=((end - first) * per_time, there + (TOP if is_down else BOTTOM)),
            xytext=((start - first) * per_time, source + (BOTTOM if is_down else TOP)),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.12,head_length=0.28",
                "color": style.INK,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=1.5,
        )
    return True
