"""Break down the time of a step on each rank into terms, which add up to the step exactly.

    own lane    |== compute ==|--------- free ---------|= compute =| data |... free ...|
    in flight          |------ all_reduce -------------|
    terms       compute|hidden|straggler | transfer    |compute    | data | host
                                         ^ the last rank arrives

At each moment the term is the first in this list that applies:
    compute     the lane computes (`hidden`: of that, while something was in flight)
    data        the lane loads data
    copy        the lane copies memory between host and device
    transfer    free, and an exchange is in flight at which every rank has arrived
    straggler   free, and a collective is in flight for which another rank is late
    bubble      free, and a message is in flight whose other end has not come yet
    host        free with nothing in flight: launches, Python, anything that the trace does not show
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from labkit.profile.step_trace import COMPUTE, COPY, DATA, Exchange, RankTrace, Trace

HOST, TRANSFER, STRAGGLER, BUBBLE = "host", "transfer", "straggler", "bubble"
TERMS = (COMPUTE, DATA, COPY, TRANSFER, STRAGGLER, BUBBLE, HOST)
_IN_FLIGHT = "in flight"
_Moment = tuple[float, int, str, int]
"""Time, +1 at a beginning or -1 at an end, the term, the rank that is waited for (-1: none)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of one rank in one window of time, by term."""

    start_s: float
    end_s: float
    seconds: Mapping[str, float]
    """Seconds by term; their sum is `end_s - start_s`."""
    in_flight: float
    """Seconds in which at least one exchange was in flight."""
    hidden: float
    """Seconds of `in_flight` in which the lane computed."""
    waited_for: Mapping[int, float] = field(default_factory=dict)
    """Seconds of straggler and bubble by the rank that was late."""

    @property
    def total(self) -> float:
        """Seconds of the window."""
        return self.end_s - self.start_s

    @property
    def overlap(self) -> float:
        """Hidden communication as a share of all communication, 0 to 1."""
        return self.hidden / self.in_flight if self.in_flight else 0.0


def breakdown(trace: Trace) -> dict[int, list[Terms]]:
    """Return the terms of each step, by rank; of the whole trace if no steps are marked."""
    arrivals = last_arrivals(trace)
    found = {}
    for rank, own in trace.ranks.items():
        moments = sorted(_moments(own, arrivals))
        windows = own.steps or [(own.start_s, own.end_s)]
        found[rank] = list(_terms_by_window(moments, windows))
    return found


def _terms_by_window(
    moments: list[_Moment], windows: Iterable[tuple[float, float]]
) -> Iterator[Terms]:
    """Yield the terms of each window, in order of their starts, in one pass over the moments."""
    open_now: Counter[tuple[str, int]] = Counter()
    first = 0
    for start_s, end_s in windows:
        while first < len(moments) and moments[first][0] < start_s:
            _, change, term, rank = moments[first]
            open_now[term, rank] += change
            first += 1
        last = bisect.bisect_left(moments, end_s, lo=first, key=lambda moment: moment[0])
        yield _terms(moments[first:last], start_s, end_s, open_now)


def last_arrivals(trace: Trace) -> dict[tuple, tuple[float, int]]:
    """Return, by key of an exchange, when the last rank arrived, and which rank it was."""
    return {
        key: max((each.posted_s, rank) for rank, each in by_rank.items())
        for key, by_rank in trace.matched_exchanges.items()
    }


def _moments(own: RankTrace, arrivals: Mapping[tuple, tuple[float, int]]) -> Iterator[_Moment]:
    for work in own.work:
        yield from _span(work.start_s, work.end_s, work.kind)
    for each in own.exchanges:
        last_s, late = arrivals[each.key]
        here_s = min(max(last_s, each.posted_s), each.done_s)
        yield from _span(each.posted_s, each.done_s, _IN_FLIGHT)
        yield from _span(here_s, each.done_s, TRANSFER)
        yield from _span(each.posted_s, here_s, _waiting(each), late)


def _waiting(exchange: Exchange) -> str:
    return BUBBLE if exchange.is_message else STRAGGLER


def _span(start_s: float, end_s: float, term: str, rank: int = -1) -> Iterator[_Moment]:
    if end_s > start_s:
        yield start_s, 1, term, rank
        yield end_s, -1, term, rank


def _terms(
    moments: list[_Moment],
    start_s: float,
    end_s: float,
    open_before: Mapping[tuple[str, int], int] | None = None,
) -> Terms:
    """Return the terms by one pass over all starts and ends, counting open spans."""
    seconds = dict.fromkeys(TERMS, 0.0)
    waited_for: dict[int, float] = defaultdict(float)
    open_now: Counter[tuple[str, int]] = Counter(open_before)
    in_flight = hidden = 0.0
    before_s = start_s
    for at_s, change, term, rank in [*moments, (end_s, 0, "", -1)]:
        now_s = min(max(at_s, start_s), end_s)
        if now_s > before_s:
            now, late = _term_of(open_now)
            seconds[now] += now_s - before_s
            if late >= 0:
                waited_for[late] += now_s - before_s
            if open_now[_IN_FLIGHT, -1]:
                in_flight += now_s - before_s
                hidden += now_s - before_s if now == COMPUTE else 0.0
            before_s = now_s
        open_now[term, rank] += change
    return Terms(start_s, end_s, seconds, in_flight, hidden, dict(waited_for))


def _term_of(open_now: Counter[tuple[str, int]]) -> tuple[str, int]:
    for term in (COMPUTE, DATA, COPY, TRANSFER):
        if open_now[term, -1]:
            return term, -1
    for term in (STRAGGLER, BUBBLE):
        late = next((rank for (t, rank), n in open_now.items() if t == term and n), None)
        if late is not None:
            return term, late
    return HOST, -1


@dataclass(frozen=True, slots=True)
class Figures:
    """The four figures that HTA prints for a rank, in seconds, and its overlap, 0 to 1.

    idle: nothing runs. compute: a computing kernel runs. non_compute: the rest. As in HTA the last
    profiler step is left out, because its kernels may be incomplete.
    """

    idle: float
    compute: float
    non_compute: float
    total: float
    overlap: float


def figures(trace: Trace) -> dict[int, Figures]:
    """Return HTA's temporal breakdown and its overlap of communication by rank."""
    arrivals = last_arrivals(trace)
    found = {}
    for rank, own in trace.ranks.items():
        last_s = own.steps[-1][0] if len(own.steps) > 1 else own.end_s
        spans = [(each.start_s, each.end_s) for each in own.work if each.kind != DATA]
        spans += [(each.posted_s, each.done_s) for each in own.exchanges]
        whole = [span for span in spans if span[0] < last_s] or [(own.start_s, own.end_s)]
        start_s, end_s = min(whole)[0], max(end_s for _, end_s in whole)
        terms = _terms(sorted(_moments(own, arrivals)), start_s, end_s)
        idle, compute = terms.seconds[HOST] + terms.seconds[DATA], terms.seconds[COMPUTE]
        rest = max(0.0, terms.total - idle - compute)
        found[rank] = Figures(idle, compute, rest, terms.total, terms.overlap)
    return found
