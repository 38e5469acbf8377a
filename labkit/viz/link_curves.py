r"""Seconds over the bandwidth of the link, measured and by a formula.

    seconds |\            | NVLink       dots: measured, at the bandwidths that were tried
            | \.          |              lines: predicted, from the slowest link to the fastest
            |   ` ..______|______        flat: the link is no longer what takes the time
            +-------------+------ bytes/s

Both axes are logarithmic. Above the plot are the title, the legend, and the names of the links.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import log
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from labkit import arguments
from labkit.calc.result import Result, number_of
from labkit.calc.units import bytes_text, seconds_text
from labkit.viz import style
from labkit.viz.picture import Picture, draw_heading, text_inches

HEADER, MARK_ROW = 0.45, 0.19  # inches: title with some air, a row of names of links


MAX_SERIES = 9
_WIDTH, _LEFT, _RIGHT, _BOTTOM, _PLOT = 9.0, 0.72, 0.25, 0.5, 3.0  # inches
_SAMPLES = 160
_AIR = 1.25  # how far the axes go beyond what is drawn, a factor
_LEAST = 5.0  # from end to end of an axis: nearly equal times look so, and there are two ticks
_FEW_DECADES = 150  # below this ratio powers of ten are too few ticks to read a value from
# Below a name, where the line of another link passes.
_GROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}

Points = Mapping[float, float] | Iterable[tuple[float, float]]
Model = Callable[[float], float | Result]


class Place(NamedTuple):
    """The place of a name: its row, 0 the lowest, and its middle in inches from the left."""

    row: int
    middle: float


Places = dict[str, Place]


def over_links(
    measured: Mapping[str, Points],
    predicted: Mapping[str, Model] | None = None,
    *,
    title: str = "time over the bandwidth of the link",
    marks: Mapping[str, float] | None = None,
) -> Picture:
    """Draw seconds over bytes per second, a series for each name; both axes logarithmic.

    measured: name -> {bytes/s: seconds}, or pairs of them, drawn as dots. predicted: name -> a
    function of bytes/s that returns seconds, drawn as a line in the colour of that name, over the
    whole range, which marks widen. marks: name -> bytes/s of links to point out, such as
    {"NVLink": 450e9}. Returns a Picture. ValueError: nothing to draw or more than 9 series, a
    name without points, a number that a logarithmic axis does not have, predictions for no range of
    bandwidths. TypeError for anything but a number.
    """
    points = {name: _points(name, each) for name, each in measured.items()}
    lines = dict(predicted or {})
    links = {name: _bandwidth(f"marks[{name!r}]", each) for name, each in (marks or {}).items()}
    names = list(dict.fromkeys([*points, *lines]))
    _require_few(names)
    low, high = _range(points, lines, links)
    curves = {name: _samples(name, each, low, high) for name, each in lines.items()}
    looks = style.series(names)
    limits = _limits(low, high)
    width = _WIDTH - _LEFT - _RIGHT
    places = mark_places(links, *limits, width)
    num_rows = max((place.row + 1 for place in places.values()), default=0)
    header = HEADER + 0.2 * legend_rows(names) + MARK_ROW * num_rows
    height = header + _PLOT + _BOTTOM
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(names)}")
    axes = picture.add_axes((_LEFT / _WIDTH, _BOTTOM / height, width / _WIDTH, _PLOT / height))
    for name in names:
        _draw(axes, looks[name], points.get(name, []), curves.get(name, []))
    _style_axes(axes, limits)
    _draw_marks(axes, links, places)
    draw_header(picture, title, looks, points, lines)
    return picture


def _require_few(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= MAX_SERIES:
        raise ValueError(
            f"{len(names)} series: a picture has 1 to {MAX_SERIES}, since more look alike; pass "
            "{name: {bytes/s: seconds}}"
        )


def _points(name: str, given: Points) -> list[tuple[float, float]]:
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    if not pairs:
        raise ValueError(f"measured[{name!r}] has no points; give {{bytes/s: seconds}}")
    return sorted(
        (
            _bandwidth(f"a bandwidth of measured[{name!r}]", bytes_per_s),
            _seconds(f"measured[{name!r}] at {bytes_per_s} bytes/s", seconds),
        )
        for bytes_per_s, seconds in pairs
    )


def _bandwidth(what: str, value: float | Result) -> float:
    allowed = "give bytes/s above 0 and below infinity, on an axis that is logarithmic"
    return arguments.number(what, number_of(value, what, "bytes/s"), allowed, above=0)


def _seconds(what: str, value: float | Result) -> float:
    allowed = "give seconds above 0 and below infinity, on an axis that is logarithmic"
    return arguments.number(what, number_of(value, what, "seconds"), allowed, above=0)


def _range(
    points: Mapping[str, list[tuple[float, float]]],
    lines: Mapping[str, Model],
    links: Mapping[str, float],
) -> tuple[float, float]:
    """Return the slowest and the fastest link of all."""
    measured = [bytes_per_s for each in points.values() for bytes_per_s, _ in each]
    bandwidths = sorted({*measured, *links.values()})
    if lines and len(bandwidths) < 2:
        there_is = f"{bytes_text(bandwidths[0])}/s alone" if bandwidths else "none"
        raise ValueError(
            f"predictions of {', '.join(lines)} are drawn between two bandwidths, and there is "
            f"{there_is}; measure at one more, or name links in marks="
        )
    return bandwidths[0], bandwidths[-1]


def _limits(least: float, most: float) -> tuple[float, float]:
    """Return an axis' limits, with some air around `least` and `most`."""
    beyond = max(_AIR, (_LEAST * least / most) ** 0.5)
    return least / beyond, most * beyond


def _samples(name: str, seconds_at: Model, low: float, high: float) -> list[tuple[float, float]]:
    bandwidths = [low * (high / low) ** (number / _SAMPLES) for number in range(_SAMPLES + 1)]
    return [
        (each, _seconds(f"predicted[{name!r}] at {bytes_text(each)}/s", seconds_at(each)))
        for each in bandwidths
    ]


def _draw(
    axes: Axes,
    look: style.Series,
    points: list[tuple[float, float]],
    line: list[tuple[float, float]],
) -> None:
    if line:
        axes.plot(*zip(*line), color=look.colour, linestyle=look.line, linewidth=1.4, zorder=3)
    if points:
        edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.6}
        dot: dict[str, Any] = {"marker": look.marker, "markersize": look.size, "linestyle": "none"}
        axes.plot(*zip(*points), color=look.colour, zorder=4, **dot, **edge)


def _style_axes(axes: Axes, limits: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(limits)
    axes.set_ylim(_limits(*axes.dataLim.intervaly))
    for axis, (least, most) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        subs = (1, 2, 5) if most / least < _FEW_DECADES else (1,)
        axis.set_major_locator(LogLocator(base=10, subs=subs))
    axes.xaxis.set_major_formatter(lambda value, _: f"{bytes_text(value)}/s")
    axes.yaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.minorticks_off()
    axes.set_xlabel("bandwidth of the link", fontsize=style.SMALL_POINTS, color=style.FAINT_INK)
    axes.tick_params(length=0, labelsize=style.SMALL_POINTS, labelcolor=style.INK)
    axes.grid(color=style.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.GRID)


def _draw_marks(axes: Axes, links: Mapping[str, float], places: Places) -> None:
    """Draw a line for each link, up to its name above the plot."""
    across = axes.get_xaxis_transform()
    look: dict[str, Any] = {"color": style.FAINT_INK, "linestyle": ":", "linewidth": 0.9}
    width = _WIDTH - _LEFT - _RIGHT
    for name, bytes_per_s in links.items():
        row, middle = places[name]
        top, centre = (1 + MARK_ROW * (row + part) / _PLOT for part in (0.2, 0.6))
        ends = [bytes_per_s, bytes_per_s]
        axes.plot(ends, [0, top], transform=across, zorder=1, clip_on=False, **look)
        in_axes = {"transform": axes.transAxes, "ha": "center"}
        axes.text(middle / width, centre, name, bbox=_GROUND, **style.FAINT | in_axes)


_LEGEND_COLUMNS = 4
_BETWEEN = 0.12  # inches between two names


def legend_rows(names: Sequence[str]) -> int:
    """Return how many rows of the legend the series take."""
    return -(-len(names) // _LEGEND_COLUMNS)


def mark_places(links: Mapping[str, float], low: float, high: float, width: float) -> Places:
    """Place each link's name above the plot: over its line, and no two touch.

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
    """Draw the title, what dots and lines are, and below them the legend in rows."""
    notes = ["points: measured"] * bool(measured) + ["lines: predicted"] * bool(predicted)
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
    draw_heading(picture, title, ", ".join(notes), handles, _LEGEND_COLUMNS)
