"""What stands above a picture of curves: its title, what is what, and the legend."""

from collections.abc import Sequence
from typing import Any

from matplotlib.lines import Line2D

from labkit.viz import style
from labkit.viz.curve import Curve, Mark
from labkit.viz.picture import Picture

LEGEND_COLUMNS = 6


def mark_look(is_measured: bool) -> dict[str, Any]:
    """How a mark looks: a ring where it was measured, a diamond where a model says so."""
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
    """What the legend explains: each curve, and the marks that there are."""
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


def draw_header(
    picture: Picture, title: str, curves: Sequence[Curve], handles: Sequence[Line2D]
) -> None:
    """The title, what points, bars and lines are, and below them the legend in rows."""
    height = picture.get_size_inches()[1]
    heading = picture.text(0.012, 1 - 0.2 / height, title, **style.TITLE)
    box = heading.get_window_extent()
    x = picture.transFigure.inverted().transform((box.x1, 0))[0] + 0.015
    picture.text(x, 1 - 0.2 / height, _note(curves), **style.FAINT)
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=min(len(handles), LEGEND_COLUMNS),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=2.2,
        columnspacing=1.6,
        borderpad=0.2,
    )


def _note(curves: Sequence[Curve]) -> str:
    bars = "bars: the middle half of the calls" if any(each.quartiles for each in curves) else ""
    lines = "lines: the fitted model" if any(each.model is not None for each in curves) else ""
    return ", ".join(filter(None, ["points: measured", bars, lines]))
