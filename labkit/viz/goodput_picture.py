"""Goodput over the interval between checkpoints: measured, by formulas, and the optima.

share |      .-+-.  :      o: all seeds together, a bar from the least to the most
      |   o-'  o  `-:o
      | o'     :    : `-o  lines: formulas
      +--------+----+----- seconds of work between checkpoints, logarithmic
             Young  Daly
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from labkit.calc.result import Result
from labkit.calc.units import seconds_text
from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

_WIDTH, _HEIGHT = 9.0, 3.8  # inches
_MEASURED, _SAMPLES = "#0072b2", 80
_LINES = (("#d55e00", "-"), ("#6b6b6b", "--"), ("#009e73", "-."))


def goodput(
    measured: Mapping[int, Sequence[Any]],
    predicted: Mapping[str, Callable[[float], float]],
    optima: Mapping[str, float | Result],
    *,
    title: str = "goodput over the interval between checkpoints",
) -> Picture:
    """Draw what was measured at each interval, lines of formulas, and an upright line per optimum.

    measured: what elastic.measure_goodput returns. predicted: by name, up to three functions from
    seconds of work between checkpoints to goodput; below 0 they are not drawn. optima: by name,
    such seconds. Returns a Picture. ValueError where nothing was measured.
    """
    if not measured:
        raise ValueError("nothing was measured: give what elastic.measure_goodput returns")
    totals = {num: reduce(operator.add, jobs) for num, jobs in measured.items()}
    step_s = reduce(operator.add, totals.values()).means_s[0]
    points = {num * step_s: [job.share for job in jobs] for num, jobs in measured.items()}
    together = {num * step_s: job.share for num, job in totals.items()}
    best = max(together, key=together.__getitem__)
    words = f"most at {seconds_text(best)}, {together[best]:.0%}"
    picture = Picture(_WIDTH, _HEIGHT, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    picture.text(0.013, 1 - 0.44 / _HEIGHT, f"measured: {words}", **style.SMALL)
    axes = picture.add_axes((0.07, 0.14, 0.66, 0.66))
    for interval, shares in points.items():
        axes.plot([interval] * 2, [min(shares), max(shares)], color=_MEASURED, linewidth=1.2)
    axes.plot(*zip(*together.items(), strict=True), "o", color=_MEASURED, label="measured")
    low, high = min(points) / 1.3, max(points) * 1.3
    intervals = [low * (high / low) ** (n / _SAMPLES) for n in range(_SAMPLES + 1)]
    for (name, share_at), (colour, line) in zip(predicted.items(), _LINES, strict=False):
        shares = [share_at(each) for each in intervals]
        axes.plot(intervals, shares, line, color=colour, linewidth=1.4, label=name)
    for number, (name, seconds) in enumerate(optima.items()):
        axes.axvline(float(seconds), color=style.FAINT_INK, linestyle=":", linewidth=1.2)
        look = style.FAINT | {"ha": "right" if number % 2 else "left"}
        axes.text(float(seconds), 1.05, f" {name} ", transform=axes.get_xaxis_transform(), **look)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.15 * max(map(max, points.values())))
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.minorticks_off()
    clean(axes)
    axes.set_xlabel("work between two checkpoints", fontsize=style.SMALL_POINTS)
    axes.legend(
        frameon=False, fontsize=style.SMALL_POINTS, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    return picture
