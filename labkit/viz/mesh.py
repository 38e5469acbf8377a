"""The ranks of a mesh by node, with the groups of one of them coloured by axis.

    mesh dp 2 x pp 2 x tp 2, seen from rank 5
    tp: ranks 4, 5 (one node)   pp: ranks 5, 7 (one node)   dp: ranks 1, 5 (2 nodes)

    node 0   [ 0      ] [ 1 dp   ] [ 2      ] [ 3      ]
    node 1   [ 4 tp   ] [ 5 this ] [ 6      ] [ 7 pp   ]

A rank that differs from the chosen one in one axis has that axis's colour. A rank that differs in
more axes has none, because the two never communicate.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit import arguments
from labkit.viz import style
from labkit.viz.mesh_places import Place, checked_sizes, group_text, groups_of, places
from labkit.viz.picture import Picture, blank_axes, text_inches

MAX_RANKS, MAX_COORDINATES = 64, 256  # a picture of at most 100 KB
AXIS_COLOURS = {
    "dp": "#0072b2",
    "pp": "#e69f00",
    "cp": "#8c6d31",
    "ep": "#cc79a7",
    "tp": "#009e73",
}
_WIDTH, _MARGIN, _LABEL = 9.0, 0.15, 0.75  # inches, as all that follow
_LINE, _HEADER = 0.26, 0.5
_NUMBER, _COORDINATES = 0.28, 0.18  # heights of the lines in a rank's rectangle
_GAP, _NODE_GAP = 0.06, 0.16
_COORDINATE = 0.28  # the least width of one of them
_LEAST_WIDTH = 0.45  # the least width of a rank, with the gap after it
_MOST_COLUMNS = 8
_TINT = 0.45


class _Form(NamedTuple):
    """The sizes and places of everything in the picture."""

    gpus_per_node: int
    top: float
    num_axes: int

    @property
    def nodes_in_line(self) -> int:
        least = _LABEL + _NODE_GAP + self.gpus_per_node * _LEAST_WIDTH
        return max(1, min(_MOST_COLUMNS // self.gpus_per_node, int((_WIDTH - _MARGIN) / least)))

    @property
    def node_width(self) -> float:
        return (_WIDTH - _MARGIN) / self.nodes_in_line

    @property
    def width(self) -> float:
        """Width of a rank, with the gap after it."""
        return (self.node_width - _LABEL - _NODE_GAP) / self.gpus_per_node

    @property
    def in_line(self) -> int:
        """The number of coordinates side by side."""
        return max(1, int((self.width - _GAP) / _COORDINATE))

    @property
    def height(self) -> float:
        return _NUMBER + _COORDINATES * -(-self.num_axes // self.in_line) + 0.04

    def corner(self, place: Place) -> tuple[float, float]:
        line, column = divmod(place.node, self.nodes_in_line)
        x = _MARGIN + column * self.node_width + _LABEL
        x += place.rank % self.gpus_per_node * self.width
        return x, self.top + line * (self.height + _NODE_GAP)


def mesh_map(
    sizes: Mapping[str, int], rank: int = 0, *, gpus_per_node: int = 8, title: str | None = None
) -> Picture:
    """Draw every rank with its coordinates, in its node, and the groups of `rank` by colour.

    sizes: by axis, slowest first, as Mesh takes them: {"dp": 2, "pp": 2, "tp": 2}, up to 64 ranks.
    Returns a Picture. ValueError: no axis, too many ranks (64 of five axes are), a rank or a node
    that cannot be.
    """
    sizes = checked_sizes(sizes, MAX_RANKS, MAX_COORDINATES)
    gpus_per_node = arguments.whole("gpus_per_node", gpus_per_node, "1 to 16", most=16)
    everyone = places(sizes, gpus_per_node)
    last = len(everyone) - 1
    rank = arguments.whole("rank", rank, f"0 to {last}", least=0, most=last)
    groups = groups_of(rank, sizes)
    texts = {axis: group_text(axis, ranks, gpus_per_node) for axis, ranks in groups.items()}
    axes_text = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    caption = f"mesh {axes_text}, seen from rank {rank}"
    form = _Form(gpus_per_node, _HEADER + _LINE * len(texts) + 0.1, len(sizes))
    height = form.corner(everyone[-1])[1] + form.height + _MARGIN
    picture = Picture(_WIDTH, height, f"{caption}; {'; '.join(texts.values())}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    axes.text(_MARGIN, 0.25, title or caption, **style.TITLE)
    _draw_legend(axes, texts)
    for place in everyone:
        _draw_rank(axes, place, form, _colour(place.rank, rank, groups))
    return picture


def _draw_legend(axes: Axes, texts: Mapping[str, str]) -> None:
    for number, (axis, text) in enumerate(texts.items()):
        y = _HEADER + number * _LINE
        colour = style.tint(AXIS_COLOURS[axis], _TINT)
        axes.add_patch(Rectangle((_MARGIN, y - 0.07), 0.25, 0.14, facecolor=colour))
        axes.text(_MARGIN + 0.35, y, text, **style.SMALL)


def _draw_rank(axes: Axes, place: Place, form: _Form, colour: str) -> None:
    (x, y), width = form.corner(place), form.width - _GAP
    if place.rank % form.gpus_per_node == 0:
        look = style.FAINT | {"ha": "right"}
        axes.text(x - 0.08, y + form.height / 2, f"node {place.node}", **look)
    edge: dict[str, Any] = {"edgecolor": "#8a8a8a", "linewidth": 0.6}
    axes.add_patch(Rectangle((x, y), width, form.height, facecolor=colour, **edge))
    look = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
    axes.text(x + width / 2, y + 0.15, str(place.rank), **look | {"fontweight": "bold"})
    pairs = [f"{axis}{at}" for axis, at in place.coordinates.items()]
    starts = range(0, len(pairs), form.in_line)
    for number, text in enumerate(" ".join(pairs[s : s + form.in_line]) for s in starts):
        needed = text_inches(text, style.SMALL_POINTS)[0] / (0.94 * width)
        points = {"fontsize": max(style.SMALL_POINTS / max(1.0, needed), style.SMALLEST_POINTS)}
        line = y + _NUMBER + _COORDINATES * (number + 0.45)
        axes.text(x + width / 2, line, text, **look | points)


def _colour(rank: int, chosen: int, groups: Mapping[str, tuple[int, ...]]) -> str:
    if rank == chosen:
        return style.INK
    for axis, ranks in groups.items():
        if rank in ranks:
            return style.tint(AXIS_COLOURS[axis], _TINT)
    return "#ffffff"
