"""A schedule with its times, simulated or measured: makespan, idle time, the bubble.

Both conventions of the bubble are shares of the ranks' time: relative to the TOTAL, of all the time
that the ranks spend on a step; relative to the IDEAL, of the time in which they work. 1F1B with 4
stages and 8 microbatches idles 3 of 11 parts of the total, and 3 for every 8 of work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from labkit.pipeline.op import Op, Schedule, consumer


class Span(NamedTuple):
    """An operation, or the message that it sent, with its time."""

    op: Op
    start: float
    end: float


@dataclass(frozen=True)
class Timing:
    """A schedule with its times, in seconds where they were measured, else in the costs' unit.

    rows[rank]: its operations, in the order in which it performs them. send: the cost of a message
    over the boundary between the stages s and s + 1; None: the messages' times are not known.
    """

    schedule: Schedule
    rows: tuple[tuple[Span, ...], ...]
    send: tuple[float, ...] | None = None

    @cached_property
    def sends(self) -> tuple[Span, ...]:
        """The messages between ranks, each as the operation (F or I) whose product it carries."""
        num_stages, rank_of = self.schedule.num_stages, self.schedule.rank_of
        found: list[Span] = []
        if self.send is None:
            return ()
        for rank, span in self.spans():
            product = span.op.product
            there = consumer(product, num_stages)
            if there is not None and rank_of[there] != rank:
                arrives = span.end + self.send[min(product[1], there)]
                found.append(Span(Op(*product), span.end, arrives))
        return tuple(found)

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end."""
        first = min(row[0].start for row in self.rows if row)
        return max(row[-1].end for row in self.rows if row) - first

    @cached_property
    def busy(self) -> list[float]:
        """By rank, the time spent in operations."""
        return [sum(span.end - span.start for span in row) for row in self.rows]

    def bubble(self, relative_to: str = "total") -> float:
        """The ranks' idle time, as a share of all their time, or of their busy time ("ideal").

        ValueError for another word. 0 for a schedule that takes no time at all.
        """
        if relative_to not in ("total", "ideal"):
            raise ValueError(f"relative_to={relative_to!r}: say 'total' or 'ideal'")
        total, busy = self.makespan * len(self.rows), sum(self.busy)
        whole = total if relative_to == "total" else busy
        return (total - busy) / whole if whole else 0.0

    def spans(self) -> Iterator[tuple[int, Span]]:
        """(rank, span) of all operations."""
        for rank, row in enumerate(self.rows):
            for span in row:
                yield rank, span


def measured(schedule: Schedule, spans_of: Sequence[Sequence[Span]]) -> Timing:
    """What the ranks have measured (`Step.spans`, by rank) as one Timing, which begins at 0.

    Ranks of one machine share its clock. ValueError: spans of another number of ranks, of other
    operations than the schedule's, or that overlap.
    """
    if len(spans_of) != schedule.num_ranks:
        raise ValueError(
            f"spans of {len(spans_of)} ranks for a schedule of {schedule.num_ranks}: give each "
            "rank's"
        )
    for rank, (spans, row) in enumerate(zip(spans_of, schedule.rows)):
        _require_spans_of(row, spans, rank)
    first = min(span.start for spans in spans_of for span in spans)
    rows = tuple(
        tuple(Span(op, start - first, end - first) for op, start, end in spans)
        for spans in spans_of
    )
    return Timing(schedule, rows)


def _require_spans_of(row: Sequence[Op], spans: Sequence[Span], rank: int) -> None:
    if [span.op for span in spans] != list(row):
        raise ValueError(
            f"rank {rank} measured {len(spans)} operations that are not, in order, the {len(row)} "
            "of the schedule; give the spans of one step, by rank"
        )
    times = [time for span in spans for time in (span.start, span.end)]
    if not all(map(math.isfinite, times)) or any(a > b for a, b in pairwise(times)):
        raise ValueError(f"rank {rank}'s operations overlap, or have no times: {spans[:2]!r:.120}")
