"""Which rank holds which rows and columns of each tensor, before and after it is cut.

    up: w_FD
    before: every rank     after: 256 x 64 -> 64 x 64
    +--------+             +--------+
    |        |             | rank 0 |  rows 0-63
    |  all   |             +--------+
    | ranks  |     ->      | rank 1 |  rows 64-127
    |        |             +--------+
    |        |             | ...    |
    +--------+             +--------+

A plain colour is one rank's; stripes are what several ranks hold, each of them all of it.
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from labkit import arguments
from labkit.tensor_parallel.cut import Cut
from labkit.viz import style
from labkit.viz.cells import blank_axes
from labkit.viz.names import require_names
from labkit.viz.picture import Picture
from labkit.viz.shard_label import Box, Label, draw_labels, draw_line
from labkit.viz.shard_parts import Part, Parts, parts_of

MAX_TENSORS = 8
MAX_RANKS = 8  # each has a colour of its own
_WIDTH, _MARGIN, _HEADER = 9.0, 0.15, 0.64  # inches, as all that follow
_AFTER, _PANEL = 2.3, 4.45  # from the left edge of a tensor: its second rectangle, the next tensor
_HEADING, _BELOW = 0.5, 0.24
_STRIPE = 0.14
# Sizes of rectangles that are tall (four times as many rows as columns, or more), square and wide.
_WIDTHS, _HEIGHTS = (1.1, 1.3, 1.95), (1.5, 1.3, 0.72)
_VECTOR = (1.95, 0.45)


def shards(
    tensors: Mapping[str, tuple[Sequence[int], Cut]],
    num_ranks: int,
    *,
    title: str = "which rank holds which part",
) -> Picture:
    """Each tensor on every rank before, and cut over the ranks after.

    tensors: name -> (whole shape, labkit.tensor_parallel.Cut); Cut() is replicated. Shapes have one
    or two dims; the form of a rectangle hints at them, within bounds. Where there is no room for
    words, a part has its rank's colour alone. Returns a Picture. ValueError: no tensors or more
    than 8, more than 8 ranks, a cut that does not fit its tensor. TypeError: no (shape, Cut), or no
    names.
    """
    require_names("tensors", tensors, "{name: (shape, Cut)}")
    arguments.whole("num_ranks", num_ranks, f"1 to {MAX_RANKS}, a colour each", most=MAX_RANKS)
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise ValueError(
            f"{len(tensors)} tensors: a picture that can be read has 1 to {MAX_TENSORS}"
        )
    parts = {name: parts_of(name, entry, num_ranks) for name, entry in tensors.items()}
    panels = list(parts.items())
    rows = [panels[start : start + 2] for start in range(0, len(panels), 2)]
    heights = [max(_panel_height(each) for _, each in row) for row in rows]
    height = _HEADER + sum(heights)
    picture = Picture(_WIDTH, height, _caption(title, parts))
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    _draw_header(axes, title, num_ranks)
    y = _HEADER
    for row, row_height in zip(rows, heights):
        for column, (name, each) in enumerate(row):
            _draw_panel(axes, name, each, _MARGIN + column * _PANEL, y)
        y += row_height
    return picture


def _caption(title: str, tensors: Mapping[str, Parts]) -> str:
    texts = []
    for name, each in tensors.items():
        note = f" ({each.nothing})" if each.nothing else ""
        texts.append(f"{name} {each.numbers}{note}")
    return f"{title}: {', '.join(texts)}"


def _size(shape: tuple[int, ...]) -> tuple[float, float]:
    """Width and height of a tensor's rectangle."""
    if len(shape) == 1:
        return _VECTOR
    form = log(shape[1] / shape[0], 4)  # -1: four times as many rows as columns
    width, height = (float(np.interp(form, (-1, 0, 1), sizes)) for sizes in (_WIDTHS, _HEIGHTS))
    return width, height


def _panel_height(tensor: Parts) -> float:
    return _HEADING + _size(tensor.shape)[1] + _BELOW


def _draw_header(axes: Axes, title: str, num_ranks: int) -> None:
    axes.text(_MARGIN, 0.2, title, **style.TITLE)
    ranks = [Patch(color=_colour(rank), label=f"rank {rank}") for rank in range(num_ranks)]
    axes.legend(
        handles=ranks,
        loc="upper left",
        bbox_to_anchor=(_MARGIN, 0.32),
        bbox_transform=axes.transData,
        ncols=num_ranks,
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.2,
        columnspacing=1.6,
        borderpad=0.2,
        borderaxespad=0,
    )


def _draw_panel(axes: Axes, name: str, tensor: Parts, x: float, y: float) -> None:
    width, height = _size(tensor.shape)
    room = _PANEL - _MARGIN
    draw_line(axes, x, y + 0.1, name, room, style.TITLE | {"fontsize": style.BASE_POINTS})
    axes.text(x, y + 0.34, "before: every rank", **style.FAINT)
    after_text = f"after: {tensor.numbers}"
    draw_line(axes, x + _AFTER, y + 0.34, after_text, room - _AFTER, style.FAINT)
    before, after = (Box(left, y + _HEADING, width, height) for left in (x, x + _AFTER))
    everyone = Part(tuple(range(tensor.num_ranks)), range(tensor.shape[tensor.dim]))
    draw_labels(axes, [_draw_part(axes, before, everyone, tensor)])
    axes.annotate(
        "",
        xy=(after.x - 0.07, y + _HEADING + height / 2),
        xytext=(max(before.x + width, after.x - 0.5) + 0.07, y + _HEADING + height / 2),
        arrowprops={"arrowstyle": "-|>", "color": style.FAINT_INK, "linewidth": 1.2},
    )
    boxes = [_box_of(after, part, tensor) for part in tensor.parts]
    labels = [_draw_part(axes, box, part, tensor) for box, part in zip(boxes, tensor.parts)]
    draw_labels(axes, labels)
    axes.text(after.x, after.y + height + 0.1, tensor.nothing, **style.FAINT)


def _box_of(whole: Box, part: Part, tensor: Parts) -> Box:
    start, share = (each / tensor.shape[tensor.dim] for each in (part.held.start, len(part.held)))
    if tensor.dim == 0 and len(tensor.shape) == 2:
        return whole._replace(y=whole.y + start * whole.height, height=share * whole.height)
    return whole._replace(x=whole.x + start * whole.width, width=share * whole.width)


def _draw_part(axes: Axes, box: Box, part: Part, tensor: Parts) -> Label:
    """Its colours, and the label that belongs there."""
    colours = [_colour(rank) for rank in part.ranks]
    look: dict[str, Any] = {"edgecolor": style.INK, "linewidth": 0.8, "zorder": 3}
    if len(colours) == 1:
        axes.add_patch(Rectangle(box[:2], box.width, box.height, facecolor=colours[0], **look))
    else:
        frame = Rectangle(box[:2], box.width, box.height, fill=False, **look)
        axes.add_patch(frame)
        _draw_stripes(axes, box, colours, frame)
    return Label(box, tensor.who(part), tensor.what(part), len(colours) > 1)


def _draw_stripes(axes: Axes, box: Box, colours: list[str], frame: Rectangle) -> None:
    """Slanted, so that nobody takes them for columns."""
    x, y, width, height = box
    # In a small box stripes are narrower: every colour must be seen.
    step = min(_STRIPE, (width + height) / (2 * len(colours)))
    lefts = [x - height + number * step for number in range(int((width + height) / step) + 1)]
    outlines = [
        ((a, y + height), (a + step, y + height), (a + step + height, y), (a + height, y))
        for a in lefts
    ]
    faces = [colours[number % len(colours)] for number in range(len(lefts))]
    stripes = PolyCollection(outlines, facecolors=faces, edgecolors="none", antialiaseds=False)
    axes.add_collection(stripes, autolim=False)
    stripes.set_clip_path(frame)


def _colour(rank: int) -> str:
    return style.paler(style.rank_colour(rank), 0.3)
