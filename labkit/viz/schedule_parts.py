"""The parts of a schedule's grid: a box per operation, colours, numbers, the legend.

rank 0  |0|1|2|3|        | 0 | 1 | 2 | 3 |        white: idle
rank 1    |0|1|2|3|    | 0 | 1 | 2 | 3 |

Colours: F and B are the blues of a step, I and W stand apart. Blue, green and ochre stay apart for
every common form of colour blindness, and the darkest shades differ in lightness (B, I, W, F, from
dark to light), so that they survive a black-and-white printer. A rank's virtual stages are shades
of the kind's colour, its first stage the darkest.

Numbers are outlines of digits, drawn all at once. As matplotlib's Text each of some hundred numbers
would be laid out by itself, which takes longer than everything else in a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

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
from labkit.viz.style import Picture

# For a row of height 1. Messages are drawn in the gap between rows.
TOP, BOTTOM = 0.12, 0.88
_FEW_ARROWS = 60  # more arrows cannot be followed


class Box(NamedTuple):
    """An operation on the page. left, right: in the axis' unit, 0 where the first one starts."""

    rank: int
    left: float
    right: float
    colour: str
    label: str


def boxes(timing: Timing, per_time: float = 1.0) -> list[Box]:
    """Return a box for each operation. per_time: units of the axis in one of the timing."""
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
    """Return when the first operation starts: 0 of the axis."""
    return min(row[0].start for row in timing.rows if row)


def most_stages(schedule: Schedule) -> int:
    """Return v, the largest number of stages that a rank holds."""
    return max(len(schedule.stages_of(rank)) for rank in range(schedule.num_ranks))


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
    """Draw an arrow for each message that takes time, from its operation to where it is needed.

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


# From the shade of a rank's first stage to that of its last.
_SHADES = {
    Kind.F: ("#9ccae9", "#dceefa"),
    Kind.B: ("#1b4480", "#5580bf"),
    Kind.I: ("#0f7a4f", "#5fb488"),
    Kind.W: ("#cf8212", "#e6b066"),
}
NAMES = {
    Kind.F: "F: forward",
    Kind.B: "B: backward",
    Kind.I: "I: input gradient",
    Kind.W: "W: weight gradient",
}
IDLE = "#ffffff"


def operation_colour(kind: Kind, place: int = 0, num_places: int = 1) -> str:
    """Return the colour, "#rrggbb", of a kind of operation on a rank's stage number `place`."""
    share = place / (num_places - 1) if num_places > 1 else 0.0
    first, last = (_channels(colour) for colour in _SHADES[kind])
    mixed = (round(a + (b - a) * share) for a, b in zip(first, last))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


_LARGEST, _SMALLEST = style.SMALL_POINTS, style.SMALLEST_POINTS
_DIGIT = 0.64  # width of a digit, of the type size
_MARGIN = 0.9  # points that a number leaves free, both sides together


class Number(NamedTuple):
    """A number to be written at a place, in the axes' units, on a colour, if there is room."""

    text: str
    x: float
    y: float
    room: float
    """Width of its box, in points."""
    on: str


def number_size(numbers: Sequence[Number]) -> float:
    """Return the largest type size at which nine numbers of ten fit, or the smallest there is."""
    sizes = sorted((each.room - _MARGIN) / (_DIGIT * len(each.text)) for each in numbers)
    return max(_SMALLEST, min(_LARGEST, sizes[len(sizes) // 10]))


def fitting(numbers: Sequence[Number], points: float) -> list[Number]:
    """Return those that have room at this type size."""
    # Boxes of equal cost differ in the last bits; the size is that at which one of them just fits.
    rest = _MARGIN - 1e-6
    return [each for each in numbers if _DIGIT * points * len(each.text) + rest <= each.room]


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


_WRITTEN = {
    "naive": "naive",
    "gpipe": "GPipe",
    "one_f_one_b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zero_bubble_h1": "ZB-H1",
    "zero_bubble_h2": "ZB-H2",
    "zero_bubble_v": "ZB-V",
}


COSTS = style.TimeUnit("in the unit of the costs", 1.0)


def words(schedule: Schedule) -> str:
    """Write `1F1B, 4 ranks, 8 microbatches`, and a rank's stages where it has several."""
    counts = [
        _counted(schedule.num_ranks, "rank"),
        _counted(schedule.num_microbatches, "microbatch"),
    ]
    if most_stages(schedule) > 1:
        counts.append(f"{most_stages(schedule)} stages per rank")
    return ", ".join([_WRITTEN.get(schedule.name, schedule.name), *counts])


def time_words(timing: Timing, unit: style.TimeUnit) -> str:
    """Write how long the step takes, and the bubble by both conventions."""
    takes = f"{timing.makespan * unit.per_second:.4g}"
    makespan = takes if unit is COSTS else f"{takes} {unit.name}"
    total, ideal = timing.bubble("total"), timing.bubble("ideal")
    return f"makespan {makespan}, bubble {total:.1%} of total time = {ideal:.1%} of ideal time"


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


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
