"""What stands above times over bandwidths: the title, the legend, and the names of the links."""

from collections.abc import Collection, Mapping, Sequence
from math import log
from typing import NamedTuple

from matplotlib.lines import Line2D

from labkit.viz import style
from labkit.viz.picture import Picture
from labkit.viz.text_size import text_inches

HEADER, MARK_ROW = 0.45, 0.19  # inches: title with some air, a row of names of links
_LEGEND_COLUMNS = 4
_BETWEEN = 0.12  # inches between two names


class Place(NamedTuple):
    """Of a name: its row, 0 the lowest, and its middle in inches from the left of the plot."""

    row: int
    middle: float


Places = dict[str, Place]


def legend_rows(names: Sequence[str]) -> int:
    """How many rows of the legend the series take."""
    return -(-len(names) // _LEGEND_COLUMNS)


def mark_places(links: Mapping[str, float], low: float, high: float, width: float) -> Places:
    """Where above the plot each link's name stands: over its line, and no two touch.

    low, high: bytes/s at the ends of an axis of `width` inches.
    """
    ends: list[float] = []  # by row: up to where it is taken
    places: Places = {}
    for name, bytes_per_s in sorted(links.items(), key=lambda item: item[1]):
        half = (text_inches(name, style.SMALL_POINTS)[0] + _BETWEEN) / 2
        over_line = width * log(bytes_per_s / low) / log(high / low)
        middle = max(half, min(over_line, width - half))
        row = next((row for row, end in enumerate(ends) if end <= middle - half), len(ends))
        ends[row : row + 1] = [middle + half]
        places[name] = Place(row, middle)
    return places


def draw_header(
    picture: Picture,
    title: str,
    looks: Mapping[str, style.Series],
    measured: Collection[str],
    predicted: Collection[str],
) -> None:
    """The title, what dots and lines are, and below them the legend in rows."""
    height = picture.get_size_inches()[1]
    heading = picture.text(0.012, 1 - 0.2 / height, title, **style.TITLE)
    x = picture.transFigure.inverted().transform((heading.get_window_extent().x1, 0))[0] + 0.015
    notes = ["points: measured"] * bool(measured) + ["lines: predicted"] * bool(predicted)
    picture.text(x, 1 - 0.2 / height, ", ".join(notes), **style.FAINT)
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            marker=look.marker if name in measured else "",
            linestyle=look.line if name in predicted else "none",
            markersize=look.size,
            linewidth=1.4,
            label=name,
        )
        for name, look in looks.items()
    ]
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=min(len(handles), _LEGEND_COLUMNS),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=2.2,
        columnspacing=1.6,
        borderpad=0.2,
    )
