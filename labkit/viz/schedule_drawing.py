"""The parts of schedule_parts.py as matplotlib draws them: boxes, numbers, messages, the legend.

Numbers are outlines of digits, drawn all at once. As matplotlib's Text each of some hundred numbers
would be laid out by itself, which takes longer than everything else in a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from labkit.pipeline import Kind, Schedule, Timing
from labkit.viz import style
from labkit.viz.picture import Picture
from labkit.viz.schedule_parts import (
    BOTTOM,
    IDLE,
    NAMES,
    TOP,
    Box,
    Number,
    arrows,
    fitting,
    most_stages,
    number_size,
    operation_colour,
)


def draw_boxes(axes: Axes, found: list[Box], num_ranks: int, width_points: float) -> None:
    """Draw boxes on `axes`: y grows downwards, one unit per rank, x from 0 to the last end.

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
    """Draw an arrow for each message that takes time. Returns whether there are any."""
    found = arrows(timing, per_time)
    for each in found:
        axes.annotate(
            "",
            xy=each.head,
            xytext=each.tail,
            arrowprops={
                "arrowstyle": "-|>,head_width=0.12,head_length=0.28",
                "color": style.INK,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=1.5,
        )
    return bool(found)


def draw_numbers(axes: Axes, numbers: Sequence[Number]) -> None:
    """Draw all numbers in one size; those that do not fit are left out."""
    points = number_size(numbers)
    shown = fitting(numbers, points)
    if not shown:
        return
    collection = PathCollection(
        [outline(each.text) for each in shown],
        offsets=[(each.x, each.y) for each in shown],
        offset_transform=axes.transData,
        facecolors=[style.text_on(each.on) for each in shown],
        linewidths=0,
        zorder=3,
    )
    figure = axes.get_figure()
    assert figure is not None, "axes belong to a picture"
    collection.set_transform(Affine2D().scale(points / 72) + figure.dpi_scale_trans)
    axes.add_collection(collection, autolim=False)


@cache
def outline(text: str) -> Path:
    """Return the digits' shape, centred on the origin, for a type size of 1."""
    size = 100.0  # a font keeps too few decimals of outlines at size 1
    path = TextPath((0, 0), text, size=size, prop=FontProperties())
    box, zero = path.get_extents(), TextPath((0, 0), "0", size=size).get_extents()
    middle = Affine2D().translate(-(box.x0 + box.x1) / 2, -(zero.y0 + zero.y1) / 2)
    return Path(path.vertices, path.codes).transformed(middle.scale(1 / size))


def draw_legend(
    picture: Picture, schedule: Schedule, y: float, left: float, *, arrows: bool
) -> None:
    """Draw the colours of what the picture contains, in one row. y: of the figure."""
    present = {op.kind for row in schedule.rows for op in row}
    num_places = most_stages(schedule)
    handles: list[Any] = []  # a tuple is drawn side by side; matplotlib's types know no tuples
    labels = []
    for kind in Kind:
        if kind in present:
            shades = [operation_colour(kind, place, num_places) for place in range(num_places)]
            handles.append(tuple(Patch(facecolor=shade) for shade in shades))
            labels.append(NAMES[kind])
    handles.append((Patch(facecolor=IDLE, edgecolor="#a8a8a8", linewidth=0.8),))
    labels.append("idle: the bubble")
    if arrows:
        handles.append(Line2D([], [], color=style.INK, marker=">", ms=4, lw=0.9))
        labels.append("message")
    picture.legend(
        handles,
        labels,
        loc="center left",
        bbox_to_anchor=(left, y),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.3 if num_places == 1 else 0.8 * num_places,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.4,
        borderpad=0,
        borderaxespad=0,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )
