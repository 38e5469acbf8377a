"""Pictures of performance: a roofline, scaling curves, a heat map of bandwidths.

roofline: the roof of a machine, and a point for each operation under it.

    FLOP/s |          __________  peak
           |        /      o MLP
           |      / o layer norm
           +-------------------- FLOP per byte

scaling_curves: the speedup over ranks, strong and weak, and the parts of the steps.

    speedup   ideal .'              strong 1 |========================|
            |     .'   __--- Amdahl        2 |============|//|            //: communication
            |   .'__--o                    4 |=======|////|
            +---------- ranks         weak 4 |========================|////|

bandwidth_map: a pair much slower than the fastest has a dark cell; noise stays white.

           0     1   |   2     3
    0      .    20   |  20     5      rank 3 has a slow link: a dark row and column
    1     20     .   |  20     5
         ------------+------------
    2     20    20   |   .     5      a leaf's uplink that is degraded: nothing to see
    3      5     5   |   5     .
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from labkit.calc.units import number_text, quantity_text, seconds_text
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import Picture, blank_axes

_WIDTH = 9.0  # inches, as all that follow
_ROOFLINE_HEIGHT, _SCALING_HEIGHT = 4.2, 3.6
_MEMORY, _COMPUTING = "#e69f00", "#0072b2"


def roofline(
    operations: Mapping[str, tuple[float, float]],
    flops_per_s: float,
    bytes_per_s: float,
    *,
    title: str = "roofline",
) -> Picture:
    """Draw operations under the roof, numbered: memory bounds squares, computing circles.

    operations: by name, FLOP per byte and FLOP/s. Both axes are logarithmic. Returns a Picture.
    ValueError if there is no operation.
    """
    if not operations:
        raise ValueError("there is no operation to draw: give {'MLP': (100.0, 2e11), ...}")
    ridge = flops_per_s / bytes_per_s
    words = f"{quantity_text(flops_per_s, 'FLOP/s')}, {quantity_text(bytes_per_s, 'bytes/s')}"
    below = [name for name, (intensity, _) in operations.items() if intensity < ridge]
    caption = f"{title}: {words}; bound by memory: {', '.join(below) or 'nothing'}"
    picture = Picture(_WIDTH, _ROOFLINE_HEIGHT, caption)
    picture.text(0.013, 1 - 0.2 / _ROOFLINE_HEIGHT, title, **style.TITLE)
    picture.text(0.013, 1 - 0.44 / _ROOFLINE_HEIGHT, f"roof: {words}", **style.SMALL)
    axes = picture.add_axes((0.08, 0.13, 0.73, 0.68))
    intensities = [intensity for intensity, _ in operations.values()]
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 6
    corners = [low, ridge, high]
    roof = [min(flops_per_s, bytes_per_s * each) for each in corners]
    axes.plot(corners, roof, color=style.INK, linewidth=1.8, zorder=3)
    axes.axvline(ridge, color=style.FAINT_INK, linestyle=":", linewidth=1.2)
    for share, where, colour in ((0.02, "memory", _MEMORY), (0.98, "computing", _COMPUTING)):
        side = "left" if share < 0.5 else "right"
        look = style.SMALL | {"color": colour, "ha": side, "transform": axes.transAxes}
        axes.text(share, 1.04, f"bound by {where}", **look)
    _draw_operations(picture, axes, operations, ridge)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("GFLOP/s", fontsize=style.SMALL_POINTS)
    axes.yaxis.set_major_formatter(lambda value, _: number_text(value / 1e9))
    axes.set_ylim(min(speed for _, speed in operations.values()) / 3, 2 * flops_per_s)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    clean(axes)
    axes.set_xlabel(f"FLOP per byte; ridge at {ridge:.3g}", fontsize=style.SMALL_POINTS)
    return picture


def _draw_operations(
    picture: Picture, axes: Axes, operations: Mapping[str, tuple[float, float]], ridge: float
) -> None:
    """Number the operations, since names would hide each other, and name them at the right."""
    for number, (name, (intensity, speed)) in enumerate(operations.items(), 1):
        is_memory = intensity < ridge
        colour, marker = (_MEMORY, "s") if is_memory else (_COMPUTING, "o")
        axes.plot(intensity, speed, marker, color=colour, markersize=12, zorder=4)
        look = style.SMALL | {"ha": "center", "va": "center", "color": style.text_on(colour)}
        axes.text(intensity, speed, str(number), zorder=5, **look)
        picture.text(0.83, 0.78 - 0.065 * number, f"{number}  {name}", **style.SMALL)


_STRONG, _IDEAL, _WAITING = "#0072b2", "#6b6b6b", "#e69f00"
_WORK = "#a9c6e3"
_BEYOND = 4  # how many times the most ranks the law's line goes on


def scaling_curves(
    strong: Mapping[int, tuple[float, float]],
    weak: Mapping[int, tuple[float, float]],
    law: Callable[[float], float],
    *,
    title: str | None = None,
) -> Picture:
    """Draw the speedup of strong scaling with a law's line, and bars of all steps.

    strong, weak: by number of ranks, from 1: seconds of a step, and those of communication that
    nothing hides. law: seconds of a strong step on any number of ranks. Returns a Picture.
    ValueError if 1 rank is missing, or every other number.
    """
    if 1 not in strong or len(strong) < 2:
        raise ValueError(f"steps on {sorted(strong)} ranks: give 1 and at least one more")
    most = max(strong)
    speedup = {n: strong[1][0] / seconds for n, (seconds, _) in strong.items()}
    title = title or "scaling of a step"
    words = f"{speedup[most]:.2f} x as fast on {most} ranks, {speedup[most] / most:.0%} efficient"
    picture = Picture(_WIDTH, _SCALING_HEIGHT, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / _SCALING_HEIGHT, title, **style.TITLE)
    picture.text(0.013, 1 - 0.44 / _SCALING_HEIGHT, f"strong: {words}", **style.SMALL)
    curves, bars = (picture.add_axes((left, 0.13, 0.38, 0.66)) for left in (0.06, 0.58))
    _draw_curves(curves, speedup, lambda n: law(1) / law(n))
    _draw_bars(bars, {"strong": strong, "weak": weak})
    return picture


def _draw_curves(axes: Axes, speedup: Mapping[int, float], law: Callable[[float], float]) -> None:
    most = max(speedup)
    ranks = [2 ** (step / 8) for step in range(200) if 2 ** (step / 8) <= _BEYOND * most]
    axes.plot(ranks, ranks, color=_IDEAL, linestyle=":", linewidth=1.4, label="ideal")
    axes.plot(ranks, [law(n) for n in ranks], color=_STRONG, linewidth=1.4, label="Amdahl")
    axes.plot(list(speedup), list(speedup.values()), "o", color=_STRONG, label="measured", zorder=4)
    for n, times in speedup.items():
        axes.annotate(
            f"{times:.2f} x",
            (n, times),
            xytext=(5, -11),
            textcoords="offset points",
            fontsize=style.SMALL_POINTS,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0.7, _BEYOND * most)
    clean(axes)
    axes.set_title("speedup over ranks", loc="left", fontsize=style.BASE_POINTS)
    axes.legend(frameon=False, fontsize=style.SMALL_POINTS, loc="upper left")


def _draw_bars(axes: Axes, by_kind: Mapping[str, Mapping[int, tuple[float, float]]]) -> None:
    rows = [(kind, n, *times) for kind, points in by_kind.items() for n, times in points.items()]
    longest = max(seconds for _, _, seconds, _ in rows)
    for row, (_, _, seconds, waiting_s) in enumerate(rows):
        working_s = seconds - waiting_s
        axes.barh(row, working_s, 0.7, color=_WORK)
        axes.barh(row, waiting_s, 0.7, working_s, color=_WAITING, hatch="////", edgecolor="white")
        axes.text(seconds + 0.02 * longest, row, seconds_text(seconds), **style.SMALL)
    axes.set_yticks(range(len(rows)), [f"{kind}, {n}" for kind, n, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * longest)
    axes.set_xticks([])
    clean(axes)
    axes.grid(visible=False)
    axes.set_title("a step, by number of ranks", loc="left", fontsize=style.BASE_POINTS, pad=22)
    handles = [
        Patch(facecolor=_WORK, label="work"),
        Patch(facecolor=_WAITING, hatch="////", edgecolor="white", label="communication"),
    ]
    axes.legend(
        handles=handles,
        frameon=False,
        fontsize=style.SMALL_POINTS,
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.98),
        ncols=2,
    )


MAX_RANKS = 16
_SLOW = "#0072b2"
_HEALTHY = 0.6  # share of the fastest pair that noise does not reach, and half of a link does
_LEFT, _HEADER, _CELL_WIDTH, _CELL_HEIGHT = 0.75, 0.85, 0.5, 0.34  # inches


def bandwidth_map(
    bytes_per_s: Mapping[tuple[int, int], float],
    *,
    groups: Sequence[Sequence[int]] = (),
    title: str | None = None,
) -> Picture:
    """Draw MB/s from rank to rank: pairs below 60% of the fastest one are shaded.

    A shade is a share of the fastest pair's bandwidth, so two runs of healthy links look alike.

    bytes_per_s: by pair of ranks, the lower one first; a cell without a pair stays empty. groups:
    ranks that lines keep together, such as those of a leaf, in order. Returns a Picture.
    ValueError for no pair, and for more than 16 ranks.
    """
    if not bytes_per_s:
        raise ValueError("there is no pair to draw: give bytes per second, {(0, 1): 20e6, ...}")
    n = 1 + max(map(max, bytes_per_s))
    if n > MAX_RANKS:
        raise ValueError(f"{n} ranks: a map that can be read has up to {MAX_RANKS}")
    most = max(bytes_per_s.values())
    a, b = min(bytes_per_s, key=lambda pair: bytes_per_s[pair])
    words = f"{megabytes(bytes_per_s[a, b])} (ranks {a} and {b}) to {megabytes(most)} MB/s"
    title = title or f"bandwidth of pairs of {n} ranks"
    width, height = max(4.5, _LEFT + n * _CELL_WIDTH + 0.1), _HEADER + n * _CELL_HEIGHT + 0.1
    picture = Picture(width, height, f"{title}: {words}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, width, height)
    axes.text(0.12, 0.2, title, **style.TITLE)
    axes.text(
        0.12, 0.45, f"{words}; shaded: below {_HEALTHY:.0%} of the fastest pair", **style.SMALL
    )
    _draw_cells(axes, bytes_per_s, n)
    right, bottom = _LEFT + n * _CELL_WIDTH, _HEADER + n * _CELL_HEIGHT
    for group in groups[1:]:
        x, y = _LEFT + min(group) * _CELL_WIDTH, _HEADER + min(group) * _CELL_HEIGHT
        axes.plot([x, x], [_HEADER, bottom], color=style.INK, linewidth=1.4)
        axes.plot([_LEFT, right], [y, y], color=style.INK, linewidth=1.4)
    return picture


def _draw_cells(axes: Axes, bytes_per_s: Mapping[tuple[int, int], float], n: int) -> None:
    most = max(bytes_per_s.values())
    centred = style.SMALL | {"ha": "center"}
    for a in range(n):
        x, y = _LEFT + (a + 0.5) * _CELL_WIDTH, _HEADER + (a + 0.5) * _CELL_HEIGHT
        axes.text(x, _HEADER - 0.14, str(a), **centred)
        axes.text(_LEFT - 0.1, y, f"rank {a}", **style.SMALL | {"ha": "right"})
        for b in range(n):
            corner = (_LEFT + b * _CELL_WIDTH, _HEADER + a * _CELL_HEIGHT)
            speed = bytes_per_s.get((min(a, b), max(a, b)))
            share = speed / most if speed else 0
            shade = style.tint(_SLOW, 1 if share >= _HEALTHY else share)
            colour = shade if speed else "#f0f0f0"
            cell = Rectangle(corner, _CELL_WIDTH, _CELL_HEIGHT, facecolor=colour, linewidth=0.7)
            cell.set_edgecolor(style.GRID)
            axes.add_patch(cell)
            text = megabytes(speed) if speed else "·"
            place = (corner[0] + _CELL_WIDTH / 2, y)
            axes.text(*place, text, **centred | {"color": style.text_on(colour)})


def megabytes(bytes_per_s: float) -> str:
    """Write MB/s without its unit: three digits, "19.0", "1140", "0.02"."""
    value = bytes_per_s / 1e6
    if value < 9.995:
        return f"{value:.3g}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
