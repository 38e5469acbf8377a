"""The rows and columns of each tensor that a rank holds, before and after it is cut.

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
`parts_of` says which ranks hold which rows or columns of one tensor:

    Sharding(0, (range(0, 2), range(0, 2), range(2, 3), range(3, 3))) of a tensor (3, 64)
        -> parts: ranks 0 and 1: rows 0-1; rank 2: row 2        no part: rank 3

A label names ranks and rows on two lines or one, on three, or upright; in less room, the ranks
alone; where even the number of a rank is too long, nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from labkit import arguments
from labkit.calc.units import number_text
from labkit.tensor_parallel.linear import Sharding
from labkit.viz import style
from labkit.viz.picture import Picture, blank_axes, text_inches

MAX_TENSORS = 8
MAX_RANKS = 8  # each has a colour of its own
_WIDTH, _MARGIN, _HEADER = 9.0, 0.15, 0.64  # inches, as all that follow
_AFTER, _PANEL = 2.3, 4.45  # from the left edge of a tensor: its second rectangle, the next tensor
_HEADING, _BELOW = 0.5, 0.24
_STRIPE = 0.14
# Sizes of rectangles that are tall (four times as many rows as columns, or more), square and wide.
_WIDTHS, _HEIGHTS = (1.1, 1.3, 1.95), (1.5, 1.3, 0.72)
_VECTOR = (1.95, 0.45)


@dataclass(frozen=True)
class Part:
    """The `ranks` that all hold this part of the tensor's dim that is cut."""

    ranks: tuple[int, ...]
    held: range


@dataclass(frozen=True)
class Parts:
    """One tensor: its whole shape, the dim that is cut (0 where none is), and its parts."""

    shape: tuple[int, ...]
    dim: int
    parts: tuple[Part, ...]
    num_ranks: int
    held_by_rank: tuple[range, ...]

    @property
    def numbers(self) -> str:
        """The shape before and after: "256 x 64 -> 64 x 64", or "65 x 64 -> 17 or 16 x 64"."""
        lengths = sorted({len(held) for held in self.held_by_rank}, reverse=True)
        most, least = number_text(lengths[0]), number_text(lengths[-1])
        joined = " to " if len(lengths) > 2 else " or "
        own = most if len(lengths) == 1 else f"{most}{joined}{least}"
        whole = [number_text(length) for length in self.shape]
        shares = [own if dim == self.dim else text for dim, text in enumerate(whole)]
        return f"{' x '.join(whole)} -> {' x '.join(shares)}"

    @property
    def nothing(self) -> str:
        """Name the ranks that hold nothing, such as "nothing: ranks 2, 3"; "" if there are none."""
        idle = tuple(rank for rank, held in enumerate(self.held_by_rank) if not held)
        return f"nothing: {ranks_text(idle)}" if idle else ""

    def who(self, part: Part) -> str:
        """ "rank 0", "ranks 0, 1" or "all ranks"."""
        is_shared_by_all = 1 < len(part.ranks) == self.num_ranks
        return "all ranks" if is_shared_by_all else ranks_text(part.ranks)

    def what(self, part: Part) -> str:
        """ "rows 0-15"; "" for the whole tensor."""
        if len(part.held) == self.shape[self.dim]:
            return ""
        return places_text(part.held, self.shape, self.dim)


class Box(NamedTuple):
    """A rectangle in inches; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


class Label(NamedTuple):
    """The text in a box, such as "ranks 0, 1" and "rows 0-7"; a white ground on stripes."""

    box: Box
    who: str
    what: str
    is_on_stripes: bool


def shards(
    tensors: Mapping[str, tuple[Sequence[int], Sharding]],
    num_ranks: int,
    *,
    title: str = "which rank holds which part",
) -> Picture:
    """Draw each tensor on every rank before, and cut over the ranks after.

    tensors: name -> (whole shape, labkit.tensor_parallel.Sharding); Sharding() is replicated.
    Shapes have one or two dims; the form of a rectangle hints at them, within bounds. Where there
    is no room for words, a part has its rank's colour alone. Returns a Picture. ValueError: no
    tensors or more than 8, more than 8 ranks, a sharding that does not fit its tensor.
    TypeError: no (shape, Sharding), or no names.
    """
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
    """Return width and height of a tensor's rectangle."""
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
    shapes = f"after: {tensor.numbers}"
    if text_inches(shapes, style.SMALLEST_POINTS)[0] > room - _AFTER:
        shapes = tensor.numbers  # the arrow in it says the same
    draw_line(axes, x + _AFTER, y + 0.34, shapes, room - _AFTER, style.FAINT)
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
    """Draw its colours, and the label that belongs there."""
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
    """Draw slanted stripes, which cannot be taken for columns."""
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


def ranks_text(ranks: Sequence[int]) -> str:
    """Write ranks: "rank 0", "ranks 0, 2", and "ranks 0-3" for more than two in a row."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    follow = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    return f"ranks {ranks[0]}-{ranks[-1]}" if follow else f"ranks {', '.join(map(str, ranks))}"


def places_text(held: range, shape: tuple[int, ...], dim: int) -> str:
    """Write places: "rows 0-15", "column 3", or "elements 0-15" of a tensor with one dim."""
    name = "element" if len(shape) == 1 else ("row", "column")[dim]
    first, last = held[0], held[-1]
    return f"{name} {first}" if first == last else f"{name}s {first}-{last}"


def parts_of(name: str, entry: Any, num_ranks: int) -> Parts:
    """Return who holds what of `entry`, a (shape, Sharding); `name` is for errors.

    ValueError: not one or two dims, an empty tensor, or a cut of another number of ranks or another
    tensor.
    """
    shape, sharding = entry
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError(
            f"{name}: a picture has room for rows and columns, and {shape} is not one or two "
            "positive lengths; reshape it, or leave it out"
        )
    if sharding.dim is None:
        everyone = Part(tuple(range(num_ranks)), range(shape[0]))
        return Parts(shape, 0, (everyone,), num_ranks, (everyone.held,) * num_ranks)
    if sharding.dim not in range(-len(shape), len(shape)):
        raise ValueError(f"{name}: the cut is along dim {sharding.dim}, and the shape is {shape}")
    if len(sharding.ranges) != num_ranks:
        raise ValueError(
            f"{name}: sharding is for {len(sharding.ranges)} ranks, and num_ranks={num_ranks}; "
            "make both for one number"
        )
    dim = sharding.dim % len(shape)
    for rank, held in enumerate(sharding.ranges):
        if held.stop > shape[dim]:
            raise ValueError(
                f"{name}: rank {rank} holds {held} of dim {dim}, which has {shape[dim]}; give "
                "the shape that was cut"
            )
    parts = _shared(sharding.ranges)
    ends = [0, *(part.held.stop for part in parts)]
    starts = [*(part.held.start for part in parts), shape[dim]]
    for nobodys in filter(None, map(range, ends, starts)):
        raise ValueError(
            f"{name}: nobody holds {places_text(nobodys, shape, dim)} of {shape}; give the shape "
            "of the whole tensor, and the cut that was made for it"
        )
    return Parts(shape, dim, parts, num_ranks, sharding.ranges)


def _shared(held: Sequence[range]) -> tuple[Part, ...]:
    """Return shares from first to last, with equal ones joined; empty shares are no part."""
    ranks_of: dict[range, list[int]] = {}
    for rank, share in enumerate(held):
        if share:
            ranks_of.setdefault(share, []).append(rank)
    return tuple(Part(tuple(ranks_of[share]), share) for share in sorted(ranks_of, key=_start))


def _start(share: range) -> int:
    return share.start


_AIR = 0.02  # inches left free on each side


class _Way(NamedTuple):
    text: str
    degrees: int
    points: float

    def fits(self, box: Box) -> bool:
        width, height = text_inches(self.text, self.points)
        if self.degrees:
            width, height = height, width
        return width + 2 * _AIR <= box.width and height + 2 * _AIR <= box.height


def draw_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """Draw labels in the best way that fits in all boxes, or else in each box's own best way.

    A box in which nothing fits stays empty and does not count. Units of `axes` are inches.
    """
    ways = [_ways(label) for label in labels]
    fitting = [
        [number for number, way in enumerate(own) if way.fits(label.box)]
        for label, own in zip(labels, ways)
    ]
    common = set.intersection(*(set(each) for each in fitting if each)) if any(fitting) else set()
    for label, own, numbers in zip(labels, ways, fitting):
        if numbers:
            _write(axes, label, own[min(common or numbers)])


def draw_line(axes: Axes, x: float, y: float, text: str, room: float, look: dict[str, Any]) -> None:
    """Draw one line of text, smaller or with its end cut off if it is longer than `room` inches."""
    weight = look.get("fontweight", "normal")
    width = text_inches(text, look["fontsize"], weight)[0]
    points = max(look["fontsize"] * min(1, room / max(width, 1e-9)), style.SMALLEST_POINTS)
    whole = text
    while text and text_inches(text, points, weight)[0] > room + 0.05:
        text = text[:-2] + "…"
    axes.text(x, y, text or whole, **look | {"fontsize": points})


def _ways(label: Label) -> list[_Way]:
    """Return the ways from the best to read to the least, the same for every label."""
    who, what = label.who, label.what
    both = [each for each in (who, *what.split(" ", 1)) if each]
    forms = (
        ("\n".join(filter(None, (who, what))), 0),
        (", ".join(filter(None, (who, what))), 0),
        ("\n".join(both), 0),
        ("\n".join(filter(None, (who, what))), 90),
        (who, 0),
        (who, 90),
        (who.removeprefix("ranks ").removeprefix("rank "), 0),
    )
    sizes = (style.SMALL_POINTS, style.SMALLEST_POINTS)
    return [_Way(text, degrees, points) for text, degrees in forms for points in sizes]


def _write(axes: Axes, label: Label, way: _Way) -> None:
    x, y, width, height = label.box
    look: dict[str, Any] = {"ha": "center", "linespacing": 1.1, "zorder": 5}
    look |= {"rotation": way.degrees, "fontsize": way.points}
    if label.is_on_stripes:
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
    axes.text(x + width / 2, y + height / 2, way.text, **style.SMALL | look)
