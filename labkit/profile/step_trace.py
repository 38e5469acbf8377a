"""Trace: one model of a training step, whatever recorded it.

                0                                    time
    rank 0      |== forward ==|== backward ==|~~~ waits ~~~|= optimizer =|
      in flight                      |------ all_reduce #3 ------|
    rank 1      |== forward =======|== backward =======|~~~|= optimizer =|
      in flight                              |-------------|
                                             ^ the last rank has arrived: from here on, bytes move

A rank's own lane has the work of its device or its main thread. Its exchanges are in flight at the
same time. The exchanges of one collective on different ranks have the same key.

Layout: a Trace has RankTraces by rank; a RankTrace has Work, Exchanges and steps, in order of time.
All times are seconds on one clock: see `aligned`.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

COMPUTE: Literal["compute"] = "compute"
DATA: Literal["data"] = "data"
COPY: Literal["copy"] = "copy"
WorkKind = Literal["compute", "data", "copy"]
MESSAGES = ("send", "recv")
# In these every rank's result depends on every rank.
_OF_ALL = ("all_reduce", "barrier", "all_gather", "reduce_scatter")
ALONE = ("peer_copy",)
"""Kinds in which no rank waits for another, such as a copy between two GPUs."""


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch in which a rank's own lane is busy: computing, loading data, or copying memory."""

    start_s: float
    end_s: float
    kind: WorkKind
    name: str = ""
    size: int = 0
    """Elements of a matrix product's first operand, if they are known; else 0."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One rank's part in a collective or in a message.

    `posted_s`: the rank arrives. `waited_s`: the rank starts to wait, with an idle lane (None: it
    never waited). `done_s`: the rank has the result.
    """

    key: tuple
    """The same on all ranks that take part."""
    kind: str
    """all_reduce, send, recv, ..."""
    group: tuple[int, ...]
    """The ranks that take part; for a message, source and destination. Empty if unknown."""
    posted_s: float
    waited_s: float | None
    done_s: float
    nbytes: int = 0
    """Bytes of this rank's tensor."""
    name: str = ""
    """`all_reduce #4`."""

    @property
    def is_message(self) -> bool:
        """True for a message between two ranks, False for a collective."""
        return self.kind in MESSAGES

    @property
    def blocks(self) -> bool:
        """True if the rank waited for it. Otherwise it may have ended before `done_s`."""
        return self.waited_s is not None and self.done_s > self.waited_s

    def from_then_on(self, start_s: float) -> Exchange:
        """Return the exchange with its times cut at `start_s`, if they are earlier."""
        waited_s = None if self.waited_s is None else max(self.waited_s, start_s)
        return replace(self, posted_s=max(self.posted_s, start_s), waited_s=waited_s)

    def moved(self, by_s: float) -> Exchange:
        """Return the same on a clock that shows by_s more."""
        waited_s = None if self.waited_s is None else self.waited_s + by_s
        return replace(
            self, posted_s=self.posted_s + by_s, waited_s=waited_s, done_s=self.done_s + by_s
        )


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Work and exchanges of one rank. Parts of `work` do not overlap; gaps between them are
    waiting."""

    rank: int
    start_s: float
    end_s: float
    work: list[Work] = field(repr=False)
    exchanges: list[Exchange] = field(repr=False)
    steps: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each training step; empty where the source marks none."""
    memory: list[tuple[float, int]] = field(default_factory=list, repr=False)
    """Seconds, and bytes allocated from then on; empty where the source has none."""

    def of_steps(self) -> RankTrace:
        """Return the part from the first step to the end of the last; all if none is marked."""
        if not self.steps:
            return self
        start_s, end_s = self.steps[0][0], self.steps[-1][1]
        work = [w for w in self.work if start_s <= w.start_s < end_s]
        exchanges = [
            each.from_then_on(start_s)
            for each in self.exchanges
            if start_s < each.done_s and each.posted_s < end_s
        ]
        before = [each for each in self.memory if each[0] < start_s][-1:]
        memory = before + [each for each in self.memory if start_s <= each[0] < end_s]
        return RankTrace(self.rank, start_s, end_s, work, exchanges, self.steps, memory)

    def moved(self, by_s: float) -> RankTrace:
        """Return the same on a clock that shows by_s more."""
        work = [replace(w, start_s=w.start_s + by_s, end_s=w.end_s + by_s) for w in self.work]
        steps = [(start_s + by_s, end_s + by_s) for start_s, end_s in self.steps]
        exchanges = [each.moved(by_s) for each in self.exchanges]
        memory = [(at_s + by_s, nbytes) for at_s, nbytes in self.memory]
        start_s, end_s = self.start_s + by_s, self.end_s + by_s
        return RankTrace(self.rank, start_s, end_s, work, exchanges, steps, memory)


@dataclass(frozen=True, slots=True)
class Trace:
    """Work and exchanges of a job's ranks, of those that have a file."""

    world_size: int
    ranks: dict[int, RankTrace] = field(repr=False)
    notes: list[str] = field(default_factory=list)
    """Notes for a reader of the figures: missing ranks, clocks that were moved."""
    size_is_known: bool = True
    """False if there is one file, and it does not say how many ranks the job has."""
    host_only: frozenset[int] = frozenset()
    """Ranks whose device was not recorded: their work is the host's."""

    @property
    def matched_exchanges(self) -> dict[tuple, dict[int, Exchange]]:
        """Exchanges by key and rank."""
        found: dict[tuple, dict[int, Exchange]] = defaultdict(dict)
        for rank, own in self.ranks.items():
            for exchange in own.exchanges:
                found[exchange.key][rank] = exchange
        return found

    @property
    def seconds(self) -> float:
        """Seconds from the first start of a rank to the last end."""
        starts = [each.start_s for each in self.ranks.values()]
        return max(each.end_s for each in self.ranks.values()) - min(starts)


def with_waits(work: list[Work], exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Compute `waited_s` of exchanges from the free times of the lane; return them by posting time.

    A rank waits for an exchange if its lane is free when the exchange ends. It waits since the lane
    became free, or since the end of the last exchange that it waited for.

        lane     |== compute ==|                        |== compute ==|
        first        |--------------------|
        second               |-----------------------|
        waits                  |~~ first ~|~~ second |
    """
    found = []
    before_s = -math.inf
    exchanges = list(exchanges)
    posts_s = sorted(each.posted_s for each in exchanges)
    for each in sorted(exchanges, key=lambda each: each.done_s):
        after = bisect.bisect_left(
            work, each.done_s, key=lambda w: w.end_s
        )  # the first to end later
        is_free = after == len(work) or work[after].start_s >= each.done_s
        if is_free:
            free_from_s = work[after - 1].end_s if after else each.posted_s
            # A rank that posts something does not wait.
            post_s = posts_s[bisect.bisect_left(posts_s, each.done_s) - 1]
            waited_s = min(max(each.posted_s, free_from_s, before_s, post_s), each.done_s)
            before_s = each.done_s
        found.append(replace(each, waited_s=waited_s if is_free else None))
    return sorted(found, key=lambda each: each.posted_s)


def has_one_clock(trace: Trace) -> bool:
    """Return whether no rank had a result of all ranks before the last of them had arrived."""
    return all(
        max(each.posted_s for each in by_rank.values()) <= min(e.done_s for e in by_rank.values())
        for by_rank in trace.matched_exchanges.values()
        if next(iter(by_rank.values())).kind in _OF_ALL
    )


def missing(world_size: int, ranks: Collection[int]) -> list[str]:
    """Return a note on ranks without a trace; [] if there are none."""
    count = world_size - len(ranks)
    if count <= 0:
        return []
    known = "any of them may have arrived last, so what looks like a transfer may be waiting"
    return [f"{count} of {world_size} ranks have no trace: {known}"]


def in_doubt(trace: Trace) -> set[tuple]:
    """Return the keys of exchanges whose last arrival is unknown.

    A rank that takes part has no trace, or its part was not matched. So an apparent transfer may be
    waiting.
    """
    found = set()
    all_are_there = trace.size_is_known and len(trace.ranks) >= trace.world_size
    for key, by_rank in trace.matched_exchanges.items():
        each = next(iter(by_rank.values()))
        if each.kind in ALONE:
            continue
        is_alone = len(by_rank) == 1 and trace.world_size > 1 and len(each.group) != 1
        known = trace.ranks.keys() >= {*each.group} if each.group else all_are_there
        if is_alone or not known:
            found.add(key)
    return found


def aligned(trace: Trace, least_s: float = 1e-3) -> Trace:
    """Move the clocks of other hosts onto the clock of the first rank.

    A collective in which every rank's result depends on every rank ends at about the same time on
    all. The median difference of these ends is the offset of a rank's clock.

        rank 0   ....|---------|            end 5.0
        rank 1         ...|----|            end 9.1    -> 4.1 s ahead: moved back

    least_s: a smaller difference is left alone; ranks of one host have one clock already.
    """
    first = min(trace.ranks)
    # By rank and certainty: an end is most certain if both ranks waited for it.
    ends: dict[int, dict[tuple[bool, bool], list[float]]] = {
        rank: defaultdict(list) for rank in trace.ranks
    }
    for by_rank in trace.matched_exchanges.values():
        if first in by_rank and by_rank[first].kind in (*_OF_ALL, "all_to_all"):
            own = by_rank[first]
            for rank, exchange in by_rank.items():
                sure = own.kind in _OF_ALL, own.blocks and exchange.blocks
                ends[rank][sure].append(exchange.done_s - own.done_s)
    ahead = {rank: median(found[max(found)]) for rank, found in ends.items() if found}
    off = {rank: by_s for rank, by_s in ahead.items() if abs(by_s) >= least_s}
    ranks = {rank: each.moved(-off.get(rank, 0.0)) for rank, each in trace.ranks.items()}
    notes = [f"clock of rank {rank} moved by {-by_s:+.3g} s" for rank, by_s in off.items()]
    notes += [
        f"clock of rank {rank} not compared: no collective that ends on all ranks at once is in "
        f"common with rank {first}"
        for rank, found in ends.items()
        if not found and rank != first
    ]
    return replace(trace, ranks=ranks, notes=trace.notes + notes) if notes else trace
