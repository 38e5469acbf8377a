"""Replay a run on given links, by a virtual clock.

    result = labkit.run(step, world_size=4)                   # on any links, or on none
    timelines = labkit.replay(result.timeline, topology)      # the same program on these links
    max(each.end_s for each in timelines)                     # seconds

    journal      rank 0   post send | wait |          post recv | wait |        the order counts,
                 rank 1   post recv | wait  |    post send | wait |             the times do not
    replayed     rank 0   |=alpha + m beta=|=alpha + m beta=|                   on a clock from 0
                 rank 1   |=alpha + m beta=|=alpha + m beta=|

Every rank makes the posts and waits of the run, in their order. Messages take the times of
throttle.py's table, as in a real throttled run. Everything else takes no time: ranks that meet in a
collective go on when the last one has come. `work_s` adds the time of regions.

A real run over the same links takes longer by what the machine adds: copying, waking up, sharing
cores. The replayed time is the same on every machine, and equals calc's where calc's formula is
exact.
"""

from __future__ import annotations

import heapq
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from labkit.comm.operation import Operation, Region, Timeline
from labkit.comm.throttle import Timetable
from labkit.comm.topology import Topology

WorkSeconds = Callable[[int, Region], float]
"""From a rank and one of its regions to the seconds that its own work takes there."""
_ENTER, _POST, _WAIT, _LEAVE = range(4)


class _Event(NamedTuple):
    """A step of a rank's program. Events sort in the journal's order."""

    recorded_s: float
    place: float
    """At one moment, regions that end come first, then regions that begin, then operations."""
    kind: int
    number: int
    """The position of the operation or the region in its list."""


def replay(
    timelines: Sequence[Timeline], topology: Topology, work_s: WorkSeconds | None = None
) -> list[Timeline]:
    """Return the timelines of all ranks, with the times that a topology's links give them, from 0.

    timelines: of a run that has ended, such as `run.timeline`; by global rank. The run may have had
    other links, or none. work_s(rank, region): seconds of a rank's own work in a region, from where
    it enters. None: only messages take time.

    ValueError: a topology of other ranks; an operation that some rank never posted; an operation of
    another thread than the program's own, of which a journal does not say what it waited for.
    """
    topology.check_world_size(len(timelines))
    with tempfile.TemporaryDirectory() as folder:
        return _Replay(timelines, topology, Path(folder), work_s).timelines()


class _Replay:
    def __init__(
        self,
        timelines: Sequence[Timeline],
        topology: Topology,
        folder: Path,
        work_s: WorkSeconds | None,
    ) -> None:
        self._recorded, self._topology, self._work_s = timelines, topology, work_s
        self._now_s = 0.0
        self._table = Timetable(topology, folder, clock=lambda: self._now_s)
        self._programs = [_program(rank, each) for rank, each in enumerate(timelines)]
        self._next = [0] * len(timelines)
        self._ends_s = [0.0] * len(timelines)
        # By (rank, number): when it was posted or entered, waited for, done or left.
        self._posted_s: dict[tuple[int, int], float] = {}
        self._waited_s: dict[tuple[int, int], float] = {}
        self._done_s: dict[tuple[int, int], float] = {}
        self._entered_s: dict[tuple[int, int], float] = {}
        self._left_s: dict[tuple[int, int], float] = {}
        # By key, which the ranks of an operation share: who has posted it.
        self._arrived: dict[tuple, set[int | str]] = defaultdict(set)
        # A sent message: when its last byte leaves, and its number in the table (None: no link).
        self._sent: dict[tuple, tuple[float, int | None]] = {}
        self._blocked: dict[tuple, list[int]] = defaultdict(list)
        # Ranks that can go on, by time; at one time, those that ask for an arrival come last.
        self._ready: list[tuple[float, bool, int]] = []

    def timelines(self) -> list[Timeline]:
        """See `replay`."""
        for rank in range(len(self._programs)):
            self._go_on(rank, 0.0)
        while self._ready:
            self._now_s, _, rank = heapq.heappop(self._ready)
            self._perform(rank, self._programs[rank][self._next[rank]])
        self._require_ends()
        return [self._timeline(rank, each) for rank, each in enumerate(self._recorded)]

    def _go_on(self, rank: int, at_s: float) -> None:
        """Let a rank take its next step at a time from now on."""
        self._ends_s[rank] = at_s
        if self._next[rank] < len(self._programs[rank]):
            is_wait = self._programs[rank][self._next[rank]].kind == _WAIT
            heapq.heappush(self._ready, (at_s, is_wait, rank))

    def _perform(self, rank: int, event: _Event) -> None:
        """Perform a rank's step at this time: let it go on to the next one, or block it."""
        here, now_s = (rank, event.number), self._now_s
        until_s = now_s
        if event.kind == _ENTER:
            self._entered_s[here] = now_s
            if self._work_s:
                until_s = now_s + self._work_s(rank, self._recorded[rank].regions[event.number])
        elif event.kind == _LEAVE:
            self._left_s[here] = now_s
        elif event.kind == _POST:
            self._posted_s[here] = now_s
            self._post(rank, self._recorded[rank].operations[event.number])
        else:
            self._waited_s.setdefault(here, now_s)
            done_s = self._wait(rank, self._recorded[rank].operations[event.number])
            if done_s is None:
                return
            until_s = self._done_s[here] = done_s
        self._next[rank] += 1
        self._go_on(rank, until_s)

    def _post(self, rank: int, operation: Operation) -> None:
        key = _key(rank, operation)
        if operation.kind == "send":
            assert operation.peer is not None
            is_linked = rank != operation.peer and self._topology.link_between(rank, operation.peer)
            if is_linked:
                number, left_s = self._table.depart(rank, operation.peer, operation.payload_bytes)
                self._sent[key] = left_s, number
            else:
                self._sent[key] = self._now_s, None
        self._arrived[key].add(rank if operation.is_collective else operation.kind)
        for other in self._blocked.pop(key, ()):
            self._go_on(other, self._now_s)

    def _wait(self, rank: int, operation: Operation) -> float | None:
        """Return when the rank has the result; None if it is to ask again later."""
        key = _key(rank, operation)
        members = operation.group if operation.is_collective else ("send", "recv")
        if len(self._arrived[key]) < len(members):
            self._blocked[key].append(rank)
            return None
        if operation.is_collective:
            return self._now_s
        left_s, number = self._sent[key]
        if operation.kind == "send" or number is None:
            return max(self._now_s, left_s)
        at_s, is_final = self._table.arrival(number)
        if not is_final:
            self._go_on(rank, at_s)
            return None
        return max(self._now_s, at_s)

    def _require_ends(self) -> None:
        for rank, program in enumerate(self._programs):
            if self._next[rank] < len(program):
                operation = self._recorded[rank].operations[program[self._next[rank]].number]
                raise ValueError(
                    f"rank {rank} waits in {operation.name} ({operation.origin}) for ranks that "
                    "have not posted it in these timelines; give those of all ranks of a run that "
                    "has ended"
                )

    def _timeline(self, rank: int, recorded: Timeline) -> Timeline:
        operations = [
            replace(
                each,
                posted_s=self._posted_s[rank, number],
                waited_s=self._waited_s.get((rank, number)),
                done_s=self._done_s.get((rank, number)),
                completed_s=None,
            )
            for number, each in enumerate(recorded.operations)
        ]
        regions = [
            Region(each.name, self._entered_s[rank, number], self._left_s.get((rank, number)))
            for number, each in enumerate(recorded.regions)
        ]
        return Timeline(operations, regions, 0.0, self._ends_s[rank])


def _program(rank: int, timeline: Timeline) -> list[_Event]:
    """Return a rank's events, in order."""
    events = []
    for number, region in enumerate(timeline.regions):
        events.append(_Event(region.start_s, -1, _ENTER, number))
        if region.end_s is not None:
            is_empty = region.end_s == region.start_s
            events.append(_Event(region.end_s, math.inf if is_empty else -2, _LEAVE, number))
    for number, operation in enumerate(timeline.operations):
        if operation.in_background:
            raise ValueError(
                f"rank {rank}'s {operation.name} ({operation.origin}) was posted by another thread "
                "than the program's own: a journal does not say what it waited for; replay a run "
                "without a communication thread"
            )
        events.append(_Event(operation.posted_s, number, _POST, number))
        if operation.waited_s is not None:
            events.append(_Event(operation.waited_s, number, _WAIT, number))
    return sorted(events)


def _key(rank: int, operation: Operation) -> tuple:
    """The same for all ranks of an operation."""
    key = operation.group, operation.group_name, operation.sequence
    if operation.is_collective:
        return key
    ends = (rank, operation.peer) if operation.kind == "send" else (operation.peer, rank)
    return (*key, *ends)
