"""One rank's two lanes: its work, and below it, thin, the operations in flight.

A picture of more spans than there are dots shows how the time divides, bin by bin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from labkit.comm.operation import P2P_KINDS
from labkit.doctor.verdict import Stage
from labkit.profile.activity import Span, rows_without_overlap
from labkit.viz import style

# Within a lane of height 1, from its top.
MAIN_TOP, MAIN_BOTTOM = 0.12, 0.66
FLIGHT_TOP, FLIGHT_BOTTOM = 0.70, 0.93
MAIN_MIDDLE = (MAIN_TOP + MAIN_BOTTOM) / 2
_MAX_FLIGHT_ROWS = 6
_POINTS_PER_CHARACTER = 0.62 * style.SMALL_POINTS


@dataclass(frozen=True)
class Scale:
    """Seconds on the axis: its unit, its window, its width in points (1/72 inch)."""

    unit: style.TimeUnit
    start_s: float
    end_s: float
    width_points: float
    zero_s: float = 0.0
    """Time on the run's clock that the axis shows as 0."""

    def x(self, time_s: float) -> float:
        """Position on the axis, in the axis' unit."""
        return (time_s - self.zero_s) * self.unit.per_second

    def points(self, span: Span) -> float:
        """Width of a span on the page."""
        return (span.end_s - span.start_s) / (self.end_s - self.start_s) * self.width_points

    def fits(self, text: str, span: Span) -> bool:
        """Return whether a small text fits in a span, with a little margin."""
        return self.points(span) >= len(text) * _POINTS_PER_CHARACTER + 4

    @property
    def x_per_point(self) -> float:
        """Units of the axis per point."""
        return (self.x(self.end_s) - self.x(self.start_s)) / self.width_points


class LanePainter:
    """Paints lanes onto `axes`, whose y grows downwards with one unit per rank."""

    def __init__(self, axes: Axes, scale: Scale, region_colours: dict[str, str]) -> None:
        """region_colours: by region name; names not in it are drawn as other work."""
        self.axes = axes
        self.scale = scale
        self._region_colours = region_colours

    def colour(self, span_label: str, is_operation: bool) -> str:
        """Return the colour of a span: its kind's family, or its region's."""
        if is_operation:
            return style.kind_family(span_label).colour
        return self._region_colours.get(span_label, self._region_colours[style.OTHER_WORK])

    def bars(self, spans: Sequence[Span], top: float, bottom: float) -> None:
        """Draw a rectangle per span; the narrowest ones are widened to be visible."""
        outlines, colours, edges = [], [], []
        for span in spans:
            left, right = self.scale.x(span.start_s), self.scale.x(span.end_s)
            right = max(right, left + 0.7 * self.scale.x_per_point)
            outlines.append([(left, top), (right, top), (right, bottom), (left, bottom)])
            colours.append(self.colour(span.label, span.operation is not None))
            edges.append(0.6 if self.scale.points(span) > 4 else 0.0)
        self.axes.add_collection(
            PolyCollection(outlines, facecolors=colours, edgecolors="white", linewidths=edges),
            autolim=False,
        )

    def flight_rows(self, spans: Sequence[Span], lane: float) -> None:
        """Draw the thin lane, in which operations that overlap in time share the height."""
        if not spans:
            return
        rows = rows_without_overlap(spans, _MAX_FLIGHT_ROWS)
        height = (FLIGHT_BOTTOM - FLIGHT_TOP) / (max(rows) + 1)
        for row in range(max(rows) + 1):
            own = [span for span, at in zip(spans, rows) if at == row]
            top = lane + FLIGHT_TOP + row * height
            self.bars(own, top, top + 0.85 * height)

    def stacked(self, spans: Sequence[Span], top: float, bottom: float, num_bins: int) -> None:
        """Draw too many spans to distinguish: each column's height is split by shares of its
        time."""
        edges_s = np.linspace(self.scale.start_s, self.scale.end_s, num_bins + 1)
        operations = {span.label for span in spans if span.operation is not None}
        level = np.full(num_bins, bottom)
        # Computing is at the bottom, communicating on top of it.
        by_label = sorted(shares(spans, edges_s).items(), key=lambda item: item[0] in operations)
        for label, share in by_label:
            above = level - share * (bottom - top)
            self.axes.fill_between(
                [self.scale.x(edge_s) for edge_s in edges_s],
                np.append(level, level[-1]),
                np.append(above, above[-1]),
                step="post",
                color=self.colour(label, label in operations),
                linewidth=0,
            )
            level = above

    def labels(self, spans: Sequence[Span], lane: float, *, has_arrows: bool) -> None:
        """Write a name into every span that is wide enough; sends and receives have arrows
        instead."""
        for span in spans:
            if span.label == style.OTHER_WORK or span.unfinished:
                continue
            text = span.label
            if span.operation is not None and span.operation.kind in P2P_KINDS:
                if has_arrows:
                    continue
                text = f"{span.label} {'→' if text == 'send' else '←'} {span.operation.peer}"
            if not self.scale.fits(text, span):
                continue
            self.axes.text(
                self.scale.x((span.start_s + span.end_s) / 2),
                lane + MAIN_MIDDLE,
                text,
                ha="center",
                va="center",
                fontsize=style.SMALL_POINTS,
                color=style.text_on(self.colour(span.label, span.operation is not None)),
                clip_on=True,
            )

    def ending(self, word: str, last: Span, lane: float) -> None:
        """Write how the rank ended, to the right of its last span."""
        x = self.scale.x(last.end_s) + 4 * self.scale.x_per_point
        self.axes.text(x, lane + MAIN_MIDDLE, word, **style.SMALL)

    def failure(self, span: Span, lane: float) -> None:
        """Draw a cross where an operation ended in an error."""
        x, y = self.scale.x(span.end_s), lane + MAIN_MIDDLE
        self.axes.plot(x, y, "X", color=style.ALARM, mec="white", ms=9, clip_on=False)

    def unfinished(self, span: Span, top: float, bottom: float, *, named: bool) -> None:
        """Draw a hatched bar with a torn right end: an operation that the run's end cut off."""
        colour = self.colour(span.label, True)
        left, right = self.scale.x(span.start_s), self.scale.x(span.end_s)
        left = min(left, right - 12 * self.scale.x_per_point)
        tooth = 5 * self.scale.x_per_point
        heights = np.linspace(top, bottom, 7)
        torn = [(right - tooth * (i % 2), height) for i, height in enumerate(heights)]
        outline = [(left, top), *torn, (left, bottom)]
        self.axes.add_collection(
            PolyCollection(
                [outline], facecolors=style.paler(colour, 0.75), edgecolors=colour, hatch="////"
            ),
            autolim=False,
        )
        if not named or span.operation is None:
            return
        text = f"{span.operation.name}: never done"
        fits = (right - left) / self.scale.x_per_point > len(text) * _POINTS_PER_CHARACTER
        self.axes.text(
            (left + right) / 2 if fits else right - 8 * self.scale.x_per_point,
            (top + bottom) / 2,
            text,
            ha="center" if fits else "right",
            va="center",
            fontsize=style.SMALL_POINTS,
            color=style.ALARM,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9},
            clip_on=True,
        )


_OF_ITSELF = {Stage.RETURNED.value, Stage.RAISED.value, Stage.DIED.value}


def endings_of(run: Any) -> dict[int, str]:
    """Return the end of each rank by a failed run's error: `returned`, `raised` or `died`.

    Ranks that were ended with the run are left out. It is empty for a Run, whose ranks have all
    returned.
    """
    positions = getattr(run, "positions", ())
    words = {rank: text.partition(" ")[0] for rank, text in enumerate(positions)}
    return {rank: word for rank, word in words.items() if word in _OF_ITSELF}


def shares(spans: Sequence[Span], edges_s: np.ndarray) -> dict[str, np.ndarray]:
    """Return the share of each bin that each label takes, 0 to 1, for spans that do not overlap.

    edges_s: (bins + 1,) ascending. Returns arrays of (bins,), exact, not sampled.
    """
    by_label: dict[str, list[Span]] = {}
    for span in spans:
        by_label.setdefault(span.label, []).append(span)
    result = {}
    for label, own in by_label.items():
        times = np.array([time for span in own for time in (span.start_s, span.end_s)])
        # Time spent up to each boundary: it rises by the span's length from start to end only.
        spent = np.repeat(np.cumsum([0.0, *(span.end_s - span.start_s for span in own)]), 2)[1:-1]
        result[label] = np.diff(np.interp(edges_s, times, spent)) / np.diff(edges_s)
    return result
