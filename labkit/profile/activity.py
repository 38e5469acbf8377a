"""A rank's activity at each moment, and its operations in flight, from its journal.

Nothing here draws. Times are seconds on the run's clock.

    regions    |------------ forward ------------|   |---- backward ----|
    blocked                  |-- recv --|
    doing      |- forward ---|== recv ==|-forward|...|---- backward ----|     one thing at a time
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.comm.operation import Operation, Timeline

OTHER_WORK = "other work"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time on one rank. `operation` is None if the rank was computing."""

    start_s: float
    end_s: float
    label: str
    operation: Operation | None = None

    @property
    def unfinished(self) -> bool:
        """True if the operation of this span never ended."""
        return self.operation is not None and self.operation.done_s is None


def end_of(timeline: Timeline) -> float:
    """Return the last time in a timeline: its end, or a later time of an operation or region."""
    times = [timeline.end_s, timeline.start_s]
    for operation in timeline.operations:
        times.append(operation.posted_s if operation.done_s is None else operation.done_s)
    times += [
        region.start_s if region.end_s is None else region.end_s for region in timeline.regions
    ]
    return max(times)


def blocked(timeline: Timeline, until_s: float) -> list[Span]:
    """Return spans in which the rank only waited, up to `until_s` if an operation never ended."""
    spans = []
    for operation in timeline.operations:
        if operation.waited_s is not None and not operation.in_background:
            end_s = until_s if operation.done_s is None else operation.done_s
            spans.append(Span(operation.waited_s, end_s, operation.kind, operation))
    return [span for span in spans if span.end_s >= span.start_s]


def in_flight(timeline: Timeline, until_s: float) -> list[Span]:
    """Return every operation from posting to completion, in order of posting.

    Where the backend does not tell when it has completed one, it lasts until the rank has the
    result.
    """
    spans = [Span(op.posted_s, _arrived_s(op, until_s), op.kind, op) for op in timeline.operations]
    return sorted(spans, key=lambda span: (span.start_s, span.end_s))


def _arrived_s(operation: Operation, until_s: float) -> float:
    ends_s = [time for time in (operation.completed_s, operation.done_s) if time is not None]
    return min(ends_s, default=until_s)


def doing(timeline: Timeline, until_s: float) -> list[Span]:
    """Return the rank's activities from its start to its end, without overlap.

    A blocking operation hides all regions, and an inner region hides an outer one. The rest of the
    time is `OTHER_WORK`.
    """
    regions = [
        Span(region.start_s, until_s if region.end_s is None else region.end_s, region.name)
        for region in timeline.regions
    ]
    regions.sort(key=lambda span: (span.start_s, -span.end_s))
    waits = sorted(blocked(timeline, until_s), key=lambda span: span.start_s)
    base = Span(timeline.start_s, max(timeline.end_s, end_of(timeline)), OTHER_WORK)
    return topmost([base, *regions, *waits])


def topmost(layers: Sequence[Span]) -> list[Span]:
    """Return the visible spans after painting `layers` in order, each over the earlier ones."""
    opening = sorted(range(len(layers)), key=lambda i: layers[i].start_s)
    boundaries = sorted({time for layer in layers for time in (layer.start_s, layer.end_s)})
    shown: list[Span] = []
    active: list[int] = []  # negated positions: the topmost layer first
    next_opening = 0
    for start_s, end_s in zip(boundaries, boundaries[1:]):
        while next_opening < len(opening) and layers[opening[next_opening]].start_s <= start_s:
            heapq.heappush(active, -opening[next_opening])
            next_opening += 1
        while active and layers[-active[0]].end_s <= start_s:
            heapq.heappop(active)
        if not active:
            continue
        layer = layers[-active[0]]
        previous = shown[-1] if shown else None
        if previous is not None and previous.end_s == start_s and _same(previous, layer):
            shown[-1] = Span(previous.start_s, end_s, layer.label, layer.operation)
        else:
            shown.append(Span(start_s, end_s, layer.label, layer.operation))
    return shown


def _same(one: Span, other: Span) -> bool:
    return one.label == other.label and one.operation is other.operation


def clipped(spans: Iterable[Span], start_s: float, end_s: float) -> list[Span]:
    """Return the parts of `spans` inside the window; spans that only touch it are left out."""
    inside = []
    for span in spans:
        low, high = max(span.start_s, start_s), min(span.end_s, end_s)
        if low < high or low == high == span.start_s:
            inside.append(Span(low, high, span.label, span.operation))
    return inside


def rows_without_overlap(spans: Sequence[Span], max_rows: int) -> list[int]:
    """Return a row for each span (sorted by start): the first that is free, or the last if none
    is."""
    free_from: list[float] = []
    rows = []
    for span in spans:
        row = next((i for i, time in enumerate(free_from) if time <= span.start_s), len(free_from))
        if row == len(free_from) and row < max_rows:
            free_from.append(span.end_s)
        row = min(row, max_rows - 1)
        free_from[row] = max(free_from[row], span.end_s)
        rows.append(row)
    return rows
