"""Where the time of a step goes: a stacked bar per rank, of one trace or of several side by side.

healthy  rank 0  |====== compute ======|- transfer -|s|h|   94.0 ms
         rank 1  |====== compute ======|-- transfer --|h|   96.6 ms
slow     rank 0  |====== compute ======|- transfer -|~~~ straggler ~~~|h|  122.7 ms
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from matplotlib.patches import Patch

from labkit.profile import Trace, breakdown
from labkit.profile.breakdown import TERMS
from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

MAX_BARS = 32
_COLOURS = dict(
    zip(TERMS, ("#a9c6e3", "#009e73", "#8c6d31", "#e69f00", "#d55e00", "#cc79a7", "#c9ced3"))
)
_WIDTH, _LEFT, _RIGHT, _HEADER, _BAR, _BOTTOM = 9.0, 1.9, 0.9, 0.75, 0.3, 0.2  # inches


def step_terms(traces: Mapping[str, Trace], *, title: str = "where a step's time goes") -> Picture:
    """Draw the mean step of every rank of each trace, by name, as a bar of its terms.

    The bar is as long as the step. Numbers in it are milliseconds. Returns a Picture. ValueError
    for no trace, and for more than 32 bars.
    """
    bars = [
        (name if number == 0 else "", f"rank {rank}", _mean_terms(steps))
        for name, trace in traces.items()
        for number, (rank, steps) in enumerate(breakdown(trace).items())
    ]
    if not 0 < len(bars) <= MAX_BARS:
        raise ValueError(f"{len(bars)} bars: a picture that can be read has 1 to {MAX_BARS}")
    longest_s = max(sum(terms.values()) for _, _, terms in bars)
    present = [term for term in TERMS if any(terms[term] > 2e-3 * longest_s for _, _, terms in bars)]
    height = _HEADER + _BAR * len(bars) + _BOTTOM
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(traces)}; {', '.join(present)}")
    width, tall = _WIDTH - _LEFT - _RIGHT, _BAR * len(bars)
    axes = picture.add_axes((_LEFT / _WIDTH, _BOTTOM / height, width / _WIDTH, tall / height))
    axes.set_xlim(0, longest_s)
    axes.set_ylim(len(bars), 0)
    clean(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    for row, (name, rank, terms) in enumerate(bars):
        middle, left_s = row + 0.5, 0.0
        for term in present:
            seconds, colour = terms[term], _COLOURS[term]
            axes.barh(middle, seconds, 0.78, left_s, color=colour, edgecolor="white", linewidth=0.6)
            if seconds * width > 0.4 * longest_s:  # inches that a number needs
                axes.text(left_s + seconds / 2, middle, f"{1e3 * seconds:.1f}", **_inside(colour))
            left_s += seconds
        axes.text(1.01 * left_s, middle, f"{1e3 * left_s:.1f} ms", **style.SMALL)
        picture.text(0.013, 1 - (_HEADER + _BAR * middle) / height, name, **style.SMALL)
        axes.text(-0.012 * longest_s, middle, rank, **style.SMALL | {"ha": "right"})
    picture.text(0.013, 1 - 0.2 / height, title, **style.TITLE)
    picture.legend(
        handles=[Patch(facecolor=_COLOURS[term], label=term) for term in present],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.36 / height),
        ncols=len(present),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.2,
        borderaxespad=0,
    )
    return picture


def _mean_terms(steps: list[Any]) -> dict[str, float]:
    return {term: mean(step.seconds[term] for step in steps) for term in TERMS}


def _inside(colour: str) -> dict[str, Any]:
    return style.SMALL | {"ha": "center", "color": style.text_on(colour)}
