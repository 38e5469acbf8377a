"""The graph of dependencies in a trace. Its longest path is the run; it can be replayed.

    rank 0   (start) --work--> (post A) --0--> (wait for A) --work--> (post B) ...
                                   |                ^
                                   +--transfer--> (result of A)
                                   |
    rank 1   (start) ----work--> (post A) ...         each rank has a result of its own

    node: a moment on a rank          edge: seconds from one moment to the next

The time of a moment is the maximum over its edges: `time = max(time of source + seconds)`. Measured
seconds reproduce every measured time. Other seconds predict the time of another run (what_if.py). A
rank's result depends on the ranks that had arrived before it: every rank in an all-reduce, the root
in a broadcast. Exchanges of one group run one after the other.

The critical path goes back from the last moment along the edges with the maximum. A moment's slack
is the time by which it could be later without delaying the end.
Paper: Böhme et al., Scalable Critical-Path Based Performance Analysis, IPDPS 2012.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from statistics import median

from labkit.profile.breakdown import HOST, TRANSFER, last_arrivals
from labkit.profile.step_trace import Exchange, RankTrace, Trace

STALL, LONG_S = "stall", 1e-3
"""A gap of the host of at least this many seconds is a stall."""
_LAST_MOMENT = 0.2  # share of a transfer


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one edge that have one cause."""

    rank: int
    kind: str
    """compute, data, copy, host or stall: the rank's own work; or transfer."""
    seconds: float
    exchange: Exchange | None = None
    """The exchange of a transfer."""


@dataclass(slots=True)
class Moment:
    """A node: an event on a rank, measured at `at_s`."""

    rank: int
    at_s: float
    name: str
    edges: list[tuple[int, tuple[Part, ...]]] = field(default_factory=list)
    """Numbers of the moments before, each with the parts between them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the critical path."""

    rank: int
    start_s: float
    end_s: float
    parts: tuple[Part, ...]
    name: str
    """The event at its end: `post all_reduce #4`."""


Change = Callable[[Part], float]
"""Maps a part to the seconds that it takes in a replay."""


def measured(part: Part) -> float:
    """Return the part's measured seconds."""
    return part.seconds


class Dependencies:
    """The graph of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.moments: list[Moment] = []
        self.stretches: dict[int, list[tuple[Part, ...]]] = {rank: [] for rank in trace.ranks}
        """Own work by rank, split where it posts an exchange or waits for one."""
        self._posts: dict[tuple[tuple, int], int] = {}
        waits: list[tuple[Exchange, int, int]] = []
        meetings = trace.matched_exchanges
        self._rates = _Rates(trace)
        self.sees_end = self._rates.sees_end
        self.ends = [self._add_rank(own, waits) for own in trace.ranks.values()]
        before: dict[tuple, int] = {}
        for exchange, rank, moment in sorted(waits, key=lambda each: each[0].done_s):
            channel = rank, exchange.group, exchange.is_message
            arrived = self._add_result(exchange, rank, meetings[exchange.key], before.get(channel))
            before[channel] = arrived
            self.moments[moment].edges.append((arrived, ()))
        sources = {n: {s for s, _ in m.edges} for n, m in enumerate(self.moments)}
        self._order = list(TopologicalSorter(sources).static_order())

    def _new(self, rank: int, at_s: float, name: str) -> int:
        self.moments.append(Moment(rank, at_s, name))
        return len(self.moments) - 1

    def _add_rank(self, own: RankTrace, waits: list[tuple[Exchange, int, int]]) -> int:
        """Add the moments of one rank in order of time, with its own work between them."""
        work = _OwnWork(own)
        here, now_s = self._new(own.rank, own.start_s, "start"), own.start_s
        for at_s, until_s, exchange, is_wait in _events(own):
            start_s, end_s = max(at_s, now_s), max(min(until_s, own.end_s), now_s)
            name = f"{'wait for' if is_wait else 'post'} {exchange.name}"
            moment = self._new(own.rank, end_s, name)
            # Waiting for a result that has already arrived counts as the host's time.
            busy_until_s = start_s if self._rates.sees_end(exchange) else end_s
            self.stretches[own.rank].append(work.between(now_s, busy_until_s))
            self.moments[moment].edges.append((here, self.stretches[own.rank][-1]))
            if is_wait:
                waits.append((exchange, own.rank, moment))
            else:
                self._posts[exchange.key, own.rank] = moment
            here, now_s = moment, end_s
        end = self._new(own.rank, own.end_s, "end")
        self.stretches[own.rank].append(work.between(now_s, own.end_s))
        self.moments[end].edges.append((here, self.stretches[own.rank][-1]))
        return end

    def _add_result(
        self, exchange: Exchange, rank: int, by_rank: Mapping[int, Exchange], before: int | None
    ) -> int:
        """Add the moment of a rank's result: after all arrivals, and after its earlier result."""
        sources = [
            self._posts[exchange.key, other]
            for other, each in by_rank.items()
            if each.posted_s < exchange.done_s or other == rank
        ]
        if before is not None and self.moments[before].at_s < exchange.done_s:
            sources.append(before)
        begin_s = max(self.moments[source].at_s for source in sources)
        seconds = max(0.0, exchange.done_s - begin_s)
        if not self._rates.sees_end(exchange):
            seconds = min(seconds, self._rates.seconds(exchange))
        arrived = self._new(rank, begin_s + seconds, f"result of {exchange.name}")
        part = Part(rank, TRANSFER, seconds, exchange=exchange)
        self.moments[arrived].edges += [(source, (part,)) for source in sources]
        return arrived

    def parts(self) -> Iterator[Part]:
        """Yield all parts of own work and all transfers, each once."""
        for moment in self.moments:
            if moment.edges:
                yield from moment.edges[0][1]

    def own_seconds(self, *kinds: str) -> dict[int, float]:
        """Return the seconds of own work of these kinds, by rank."""
        sums = dict.fromkeys(self.trace.ranks, 0.0)
        for part in self.parts():
            if part.kind in kinds:
                sums[part.rank] += part.seconds
        return sums

    def times(self, change: Change = measured) -> list[float]:
        """Return the time of each moment, in seconds, if parts take the seconds of `change`."""
        return self._times(change)[0]

    def seconds(self, change: Change = measured) -> float:
        """Return the seconds from the first start to the last end."""
        times = self.times(change)
        starts = [self.moments[n].at_s for n in range(len(times)) if not self.moments[n].edges]
        return max(times[end] for end in self.ends) - min(starts)

    def critical_path(self, change: Change = measured) -> list[Segment]:
        """Return the critical path from the first moment to the last end, without empty
        segments."""
        times, decided = self._times(change)
        path = []
        here = max(self.ends, key=lambda end: times[end])
        while decided[here] is not None:
            source, parts = decided[here]
            if times[here] > times[source]:
                moment = self.moments[here]
                path.append(Segment(moment.rank, times[source], times[here], parts, moment.name))
            here = source
        return path[::-1]

    def slack(self) -> list[float]:
        """Return the seconds by which each moment could be later without delaying the last end."""
        times = self.times()
        last_s = max(times[end] for end in self.ends)
        latest = [last_s] * len(times)
        for number in reversed(self._order):
            for source, parts in self.moments[number].edges:
                takes_s = sum(part.seconds for part in parts)
                latest[source] = min(latest[source], latest[number] - takes_s)
        return [late_s - time_s for late_s, time_s in zip(latest, times, strict=True)]

    def _times(self, change: Change) -> tuple[list[float], list]:
        times = [0.0] * len(self.moments)
        decided: list = [None] * len(self.moments)
        for number in self._order:
            moment = self.moments[number]
            if not moment.edges:
                times[number] = moment.at_s
                continue
            for source, parts in moment.edges:
                time_s = times[source] + sum(change(part) for part in parts)
                if decided[number] is None or time_s > times[number]:
                    times[number], decided[number] = time_s, (source, parts)
        return times, decided


def _events(own: RankTrace) -> list[tuple[float, float, Exchange, bool]]:
    """Return a rank's events in order: from, until, the exchange, whether the rank waits."""
    posts = [(each.posted_s, each.posted_s, each, False) for each in own.exchanges]
    waits = [
        (each.waited_s, max(each.waited_s, each.done_s), each, True)
        for each in own.exchanges
        if each.waited_s is not None
    ]
    return sorted([*posts, *waits], key=lambda event: (event[0], event[3]))


class _Rates:
    """Rates of transfers that a rank waited for, to estimate those that ended before it waited."""

    def __init__(self, trace: Trace) -> None:
        self._found: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._arrivals = last_arrivals(trace)
        # A message is in flight from when it is sent, even if its receiver is not there yet.
        self._sent_s = {
            each.key: each.posted_s
            for own in trace.ranks.values()
            for each in own.exchanges
            if each.kind == "send"
        }
        for own in trace.ranks.values():
            free_s: dict[tuple, float] = {}
            for each in sorted(own.exchanges, key=lambda each: each.done_s):
                if self.sees_end(each):
                    channel = each.group, each.is_message
                    begin_s = max(self._arrivals[each.key][0], free_s.get(channel, 0.0))
                    free_s[channel] = each.done_s
                    if each.done_s > begin_s:
                        self._found[each.kind].append((each.nbytes, each.done_s - begin_s))

    def sees_end(self, exchange: Exchange) -> bool:
        """Return whether the end of an exchange is known, because the rank waited for it.

        It is unknown if the rank waited for the last fifth of it or less: then the exchange may
        have ended before, at a time that is not recorded.
        """
        if exchange.waited_s is None:
            return False
        began_s = self._sent_s.get(exchange.key, self._arrivals[exchange.key][0])
        took_s = exchange.done_s - began_s
        return exchange.done_s - exchange.waited_s > _LAST_MOMENT * took_s

    def seconds(self, exchange: Exchange) -> float:
        """Return the median of the transfers of its kind nearest in size; 0 if none is known."""
        found = self._found.get("recv" if exchange.is_message else exchange.kind, [])
        sizes = {nbytes for nbytes, _ in found}
        if not sizes:
            return 0.0
        nearest = min(sizes, key=lambda nbytes: abs(nbytes - exchange.nbytes))
        scale = min(1.0, exchange.nbytes / nearest) if nearest else 1.0
        return scale * median(seconds for nbytes, seconds in found if nbytes == nearest)


class _OwnWork:
    """The own work of a rank, which `between` cuts into parts."""

    def __init__(self, own: RankTrace) -> None:
        self._rank, self._work = own.rank, own.work

    def between(self, start_s: float, end_s: float) -> tuple[Part, ...]:
        """Return seconds by kind; gaps without work are the host's time, or a stall if long."""
        seconds: dict[str, float] = defaultdict(float)
        at_s = start_s
        first = bisect.bisect_right(self._work, start_s, key=lambda work: work.end_s)
        places = range(first, len(self._work))
        for work in itertools.chain((self._work[place] for place in places), [None]):
            next_s = end_s if work is None else min(work.start_s, end_s)
            gap_s = max(0.0, next_s - at_s)
            seconds[STALL if gap_s >= LONG_S else HOST] += gap_s
            if work is None or work.start_s >= end_s:
                break
            at_s = max(at_s, next_s)
            seconds[work.kind] += min(work.end_s, end_s) - at_s
            at_s = min(work.end_s, end_s)
        return tuple(Part(self._rank, kind, each_s) for kind, each_s in seconds.items())
