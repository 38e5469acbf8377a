"""Time and bus bandwidth over the size of the tensor, one curve per algorithm.

    time  |        /             busbw |      .----    flat here: the speed of the link
          |   ____/  slope: beta       |    /
          |  floor: alpha              |  /
          +---------- bytes            +---------- bytes

Both axes of both panels are logarithmic. Points are what was measured, lines what a model says.
Above the panels are the title, what points and lines are, and the legend.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from labkit.calc.choice import busbw
from labkit.calc.units import bytes_text, seconds_text, size_text
from labkit.viz import style
from labkit.viz.picture import Picture, draw_heading


@dataclass(frozen=True)
class Curve:
    """One algorithm: the times at each size, and what a model says at any size."""

    name: str
    sizes: Sequence[int]
    """Bytes of the tensor, ascending."""
    seconds: Sequence[float]
    quartiles: Sequence[tuple[float, float]] = ()
    """By size: between which seconds half of the calls were; drawn as a thin bar."""
    model: Callable[[float], float] | None = None
    """Seconds by bytes; without one the points are joined."""


class Mark(NamedTuple):
    """A point where two curves meet; `name` is written beside it, if there is one."""

    nbytes: float
    seconds: float
    name: str = ""
    is_measured: bool = True


_WIDTH, _HEIGHT = 9.0, 4.1  # inches
_SAMPLES = 80
_MAX_TICKS = 6
_BAR_OCTAVES = 0.13  # bars of different curves stand beside each other


def latency_bandwidth(
    curves: Sequence[Curve],
    world_size: int,
    *,
    marks: Sequence[Mark] = (),
    kind: str = "all_reduce",
    title: str | None = None,
) -> Picture:
    """Draw seconds (left) and bus bandwidth (right) over bytes, both axes logarithmic.

    curves: one per algorithm, as `labkit.measure.collectives(...).draw()` makes them. world_size,
    kind: for calc.busbw. marks: what to point out on the left, such as crossovers.
    Returns a Picture. ValueError: no curves, one without points, or one name given twice.
    """
    names = [curve.name for curve in curves]
    if not curves or len(set(names)) < len(names) or not all(curve.sizes for curve in curves):
        raise ValueError(
            f"curves of {names}: give at least one, each with a name of its own and some points"
        )
    looks = style.series(names)
    picture = Picture(_WIDTH, _HEIGHT, f"time and bandwidth over size: {', '.join(names)}")
    handles = legend_handles(curves, looks, marks)
    header = 0.66 + 0.2 * -(-len(handles) // LEGEND_COLUMNS)
    time_axes, speed_axes = (
        picture.add_axes((left, 0.125, 0.41, 0.875 - header / _HEIGHT)) for left in (0.075, 0.577)
    )

    def speed(nbytes: float, seconds: float) -> float:
        return float(busbw(nbytes, seconds, world_size, kind))

    for number, curve in enumerate(curves):
        beside = 2 ** (_BAR_OCTAVES * (number - (len(curves) - 1) / 2))
        _draw(time_axes, curve, looks[curve.name], beside, lambda _, seconds: seconds)
        _draw(speed_axes, curve, looks[curve.name], beside, speed)
    _style_axes(time_axes, curves, "time", seconds_text)
    _style_axes(speed_axes, curves, "bus bandwidth", lambda speed: f"{bytes_text(speed)}/s")
    for mark in marks:
        _draw_mark(time_axes, mark)
    title = title or f"{kind} on {world_size} ranks"
    draw_heading(picture, title, _note(curves), handles, LEGEND_COLUMNS)
    return picture


def _draw(
    axes: Axes,
    curve: Curve,
    look: style.Series,
    beside: float,
    of: Callable[[float, float], float],
) -> None:
    """`of`: from bytes and seconds to what the axis shows; `beside`: moves the bars, a factor."""
    points = [of(nbytes, seconds) for nbytes, seconds in zip(curve.sizes, curve.seconds)]
    colour: dict[str, Any] = {"color": look.colour}
    for nbytes, (low, high) in zip(curve.sizes, curve.quartiles):
        ends = [of(nbytes, low), of(nbytes, high)]
        x = nbytes * beside
        axes.plot([x, x], ends, linewidth=2.2, alpha=0.4, solid_capstyle="butt", **colour)
    if curve.model is not None:
        sizes = _samples(curve.sizes[0], curve.sizes[-1])
        predicted = [of(nbytes, curve.model(nbytes)) for nbytes in sizes]
        axes.plot(sizes, predicted, linewidth=1.4, linestyle=look.line, zorder=3, **colour)
    axes.plot(
        curve.sizes,
        points,
        marker=look.marker,
        markersize=look.size,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linestyle="none" if curve.model is not None else look.line,
        linewidth=1.1,
        zorder=4,
        label=curve.name,
        **colour,
    )


def _samples(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (number / _SAMPLES) for number in range(_SAMPLES + 1)]


def _style_axes(
    axes: Axes, curves: Sequence[Curve], name: str, text: Callable[[float], str]
) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({nbytes for curve in curves for nbytes in curve.sizes})
    ticks = sizes[:: -(-len(sizes) // _MAX_TICKS)]
    axes.set_xticks(ticks, [size_text(tick) for tick in ticks])
    low, high = axes.get_ylim()
    if high / low < 150:  # two powers of ten have too few ticks to read a value from
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: text(value))
    axes.minorticks_off()
    axes.set_title(name, loc="left", fontsize=style.BASE_POINTS, color=style.INK, pad=6)
    axes.set_xlabel("bytes of the tensor", fontsize=style.SMALL_POINTS, color=style.FAINT_INK)
    axes.tick_params(length=0, labelsize=style.SMALL_POINTS, labelcolor=style.INK)
    axes.grid(color=style.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.GRID)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    axes.plot([mark.nbytes], [mark.seconds], zorder=5, **mark_look(mark.is_measured))
    if mark.name:
        # Above and to the left a crossing is free: one curve comes flat, the other from below.
        low, high = axes.get_xlim()
        is_at_the_edge = mark.nbytes < low * (high / low) ** 0.15
        axes.annotate(
            mark.name,
            (mark.nbytes, mark.seconds),
            xytext=(-4 if is_at_the_edge else -7, 10),
            textcoords="offset points",
            ha="left" if is_at_the_edge else "right",
            fontsize=style.SMALL_POINTS,
            color=style.INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
            zorder=6,
        )


LEGEND_COLUMNS = 6


def mark_look(is_measured: bool) -> dict[str, Any]:
    """Return a mark's look: a ring where it was measured, a diamond where a model says so."""
    return {
        "marker": "o" if is_measured else "D",
        "markersize": 10 if is_measured else 8,
        "markerfacecolor": "none",
        "markeredgecolor": style.INK,
        "markeredgewidth": 1.3,
        "linestyle": "none",
    }


def legend_handles(
    curves: Sequence[Curve], looks: dict[str, style.Series], marks: Sequence[Mark]
) -> list[Line2D]:
    """Return the legend's entries: each curve, and the marks that there are."""
    handles = [
        Line2D(
            [],
            [],
            color=looks[curve.name].colour,
            marker=looks[curve.name].marker,
            linestyle=looks[curve.name].line,
            markersize=looks[curve.name].size,
            linewidth=1.4,
            label=curve.name,
        )
        for curve in curves
    ]
    for is_measured, name in ((True, "crossover, measured"), (False, "crossover, by the model")):
        if any(mark.is_measured == is_measured for mark in marks):
            handles.append(Line2D([], [], label=name, **mark_look(is_measured)))
    return handles


def _note(curves: Sequence[Curve]) -> str:
    bars = "bars: the middle half of the calls" if any(each.quartiles for each in curves) else ""
    lines = "lines: the fitted model" if any(each.model is not None for each in curves) else ""
    return ", ".join(filter(None, ["points: measured", bars, lines]))
