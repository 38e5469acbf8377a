"""Where the time of a step goes: a stacked bar per rank, of one trace or of several side by side.

healthy  rank 0  |====== compute ======|- transfer -|s|h|   94.0 ms
         rank 1  |====== compute ======|-- transfer --|h|   96.6 ms
slow     rank 0  |====== compute ======|- transfer -|~~~ straggler ~~~|h|  122.7 ms
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.profile.breakdown import TERMS, Terms, breakdown
from labkit.profile.step_trace import Trace
from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

MAX_BARS = 32
_COLOURS = dict(
    zip(TERMS, ("#a9c6e3", "#009e73", "#8c6d31", "#e69f00", "#d55e00", "#cc79a7", "#c9ced3"))
)
_BETWEEN = 0.35
"""Space between two traces, in bars."""
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
    present = [
        term for term in TERMS if any(terms[term] > 2e-3 * longest_s for _, _, terms in bars)
    ]
    groups = list(accumulate(name != "" for name, *_ in bars))
    places = [row + 0.5 + _BETWEEN * (group - 1) for row, group in enumerate(groups)]
    rows = places[-1] + 0.5
    height = _HEADER + _BAR * rows + _BOTTOM
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(traces)}; {', '.join(present)}")
    width, tall = _WIDTH - _LEFT - _RIGHT, _BAR * rows
    axes = picture.add_axes((_LEFT / _WIDTH, _BOTTOM / height, width / _WIDTH, tall / height))
    axes.set_xlim(0, longest_s)
    axes.set_ylim(rows, 0)
    clean(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    for middle, (name, rank, terms) in zip(places, bars, strict=True):
        picture.text(0.013, 1 - (_HEADER + _BAR * middle) / height, name, **style.SMALL)
        axes.text(-0.012 * longest_s, middle, rank, **style.SMALL | {"ha": "right"})
        _draw_bar(axes, middle, {term: terms[term] for term in present}, longest_s / width)
        step_s = sum(terms.values())
        axes.text(
            step_s + 0.06 * longest_s / width, middle, f"{1e3 * step_s:.1f} ms", **style.SMALL
        )
    _draw_header(picture, title, present)
    return picture


def _draw_bar(axes: Axes, middle: float, terms: Mapping[str, float], per_inch: float) -> None:
    left_s = 0.0
    for term, seconds in terms.items():
        colour = _COLOURS[term]
        axes.barh(middle, seconds, 0.78, left_s, color=colour, edgecolor="white", linewidth=0.6)
        if seconds > 0.4 * per_inch:  # a number needs so much
            inside = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
            axes.text(left_s + seconds / 2, middle, f"{1e3 * seconds:.1f}", **inside)
        left_s += seconds


def _draw_header(picture: Picture, title: str, present: Sequence[str]) -> None:
    height = picture.get_size_inches()[1]
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


def _mean_terms(steps: Sequence[Terms]) -> dict[str, float]:
    return {term: mean(step.seconds[term] for step in steps) for term in TERMS}
