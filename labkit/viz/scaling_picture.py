"""Strong and weak scaling: the speedup over ranks, and what the steps are made of.

speedup   ideal .'              strong 1 |========================|
        |     .'   __--- Amdahl        2 |============|//|            //: communication
        |   .'__--o                    4 |=======|////|
        +---------- ranks         weak 4 |========================|////|
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.calc.units import seconds_text
from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

_WIDTH, _HEIGHT = 9.0, 3.6  # inches
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
    ValueError where 1 rank is missing, or every other number.
    """
    if 1 not in strong or len(strong) < 2:
        raise ValueError(f"steps on {sorted(strong)} ranks: give 1 and at least one more")
    most = max(strong)
    speedup = {n: strong[1][0] / seconds for n, (seconds, _) in strong.items()}
    title = title or "scaling of a step"
    words = f"{speedup[most]:.2f} x as fast on {most} ranks, {speedup[most] / most:.0%} efficient"
    picture = Picture(_WIDTH, _HEIGHT, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    picture.text(0.013, 1 - 0.44 / _HEIGHT, f"strong: {words}", **style.SMALL)
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
