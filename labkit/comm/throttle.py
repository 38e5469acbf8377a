"""Messages that take the time of a Topology's links, on one machine, without root.

gloo sends the bytes at once. A `recv` returns when the last byte would have arrived, a `send` when
the last byte would have left (and the receiver has called `recv`, as always). In between, the rank
sleeps. On the way from rank a to rank b a message of m bytes passes two ports, the out port of a
and the in port of b, and reaches the second alpha seconds after the first:

    begins  = the later of: it is posted; the out port is free       port busy for m * beta
    left    = begins + m * beta
    arrived = the later of: begins + alpha; the in port is free      port busy for m * beta
              + m * beta

    alone, it takes alpha + m * beta

Under a FatTree there are more ports in between, each with a beta of its own: up to the first switch
above both hosts, and down. Switches pass bytes on at once, so a message alone takes alpha + m times
the largest beta. A fast port is busy for m times its own beta, and others' bytes pass in between:

    starts  = the later of: the first byte comes; the port is free   port busy for m * its beta
    passed  = the later of: starts + m * its beta; the last byte came

- Messages of a rank leave one after the other, in the order in which they were posted.
- Ranks that send to the same one share its in port, first come, first served. A message that waits
  for it holds up no message behind it: there is room on the way, as in a switch.
- Ranks of one host share the two ports of its slow link.
- A message begins when it is posted, whether or not its receiver has come.

Throttled      send, recv, isend and irecv on every group of the run, and so labkit.collectives.
Not throttled  the backend's own collectives (all_reduce and so on) and those through shared memory:
               the run reports it. Also barrier, split, and torch.distributed outside labkit's Group
               API.

Timetable computes these times from a table that the ranks of a run share:

    links                the number of messages, and when each port out is free again
    links.messages.0     a row per message: what is known when it is posted | when it arrives

When a message is posted, it is known when its last byte leaves and when the first one reaches the
next port. From there each process follows all messages, port by port, from the same rows in the
same order, and so computes the same times. All times are of one clock: time.monotonic(), for all
processes of a machine, or virtual_time.py's own.

A link that is faster than the machine cannot be imitated: messages then take the machine's time,
and Lateness counts them. A Group hands its operations to ThrottledMessages only in a run with a
topology. (staging.py does the same for ranks that share a GPU.)

The model: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, with the
ports of LogGP (Alexandrov et al., SPAA 1995): bytes keep a port busy, latency does not.
"""

from __future__ import annotations

import fcntl
import functools
import heapq
import mmap
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labkit.comm.shared_rows import SharedRows
from labkit.comm.topology import Port, Topology

_TIME = struct.Struct("<d")
_ENDS = struct.Struct("<II")
_POSTED, _ARRIVED = 0, 1  # columns of a row


class Departure(NamedTuple):
    """The times of a message that are known when it is posted."""

    number: int
    """Its number in the table, for `arrival`."""
    left_s: float
    """When its last byte leaves the sender's port."""


class Moment(NamedTuple):
    """The time when a message arrives, as far as it is known."""

    at_s: float
    """When its last byte arrives; if that is not final, when to ask again."""
    is_final: bool


class _Message(NamedTuple):
    """A message on its way to a port. Messages sort by the time when they reach it."""

    first_byte_s: float
    number: int
    last_byte_s: float
    """When the last byte reaches the port."""
    nbytes: int
    beta: float
    """Seconds per byte of the narrowest port so far."""
    ports: tuple[Port, ...]
    """The port and those after it."""


class Timetable:
    """One process's view of the table."""

    def __init__(
        self, topology: Topology, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """folder: of the run; the first process makes the files in it. clock: in seconds."""
        self._clock = clock
        self._link_between = topology.link_between
        self._path = functools.cache(topology.path)
        size = _NUMBER.size + topology.num_ports * _TIME.size
        self._file = open(folder / "links", "a+b")
        self._file.truncate(size)
        self._state = mmap.mmap(self._file.fileno(), size)
        self._posted = SharedRows(folder / "links.messages", 2, _POSTED)
        self._arrived = SharedRows(folder / "links.messages", 2, _ARRIVED)
        self._threads = threading.Lock()
        # A heap of messages whose first byte has not reached their next port.
        self._under_way: list[_Message] = []
        self._num_read = 0
        # By port, for all but a message's first: when it is free again.
        self._free_at_s: dict[int, float] = {}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A file's lock ends with the process that holds it, however that ends. It is held for
        # microseconds; among threads of one process it does not exclude anybody.
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def depart(self, source: int, target: int, nbytes: int) -> Departure:
        """Post a message now, from one rank to another (global numbers), over their link."""
        link = self._link_between(source, target)
        assert link is not None, "messages without a link are not in the table"
        out = self._path(source, target)[0]
        free_at = _NUMBER.size + out.number * _TIME.size
        with self._locked():
            # The clock is read under the lock: `_follow` has not gone beyond this time yet.
            start_s = max(self._clock(), *_TIME.unpack_from(self._state, free_at))
            left_s = start_s + nbytes * out.beta
            _TIME.pack_into(self._state, free_at, left_s)
            (number,) = _NUMBER.unpack_from(self._state)
            first_byte = _TIME.pack(start_s + link.alpha)
            ends = _ENDS.pack(source, target)
            self._posted.write(number, first_byte, _NUMBER.pack(nbytes), ends)
            _NUMBER.pack_into(self._state, 0, number + 1)
        return Departure(number, left_s)

    def arrival(self, number: int) -> Moment:
        """Return when a message arrives; before its first byte is there, when to ask again."""
        with self._locked():
            self._follow(self._clock())
            if (entry := self._arrived.read(number, _ARRIVED)) is None:
                reached = (each for each in self._under_way if each.number == number)
                return Moment(next(reached).first_byte_s, is_final=False)
            self._posted.tidy(number)
            self._arrived.tidy(number)
        return Moment(_TIME.unpack_from(entry)[0], is_final=True)

    def _follow(self, now_s: float) -> None:
        """Take every message through the ports that its first byte has reached, in that order.

        A port passes bytes on as they come, and is busy for as long as the message takes at the
        port's own speed. Other messages get the rest of its bandwidth.
        """
        (num_posted,) = _NUMBER.unpack_from(self._state)
        for number in range(self._num_read, num_posted):
            heapq.heappush(self._under_way, self._message(number))
        self._num_read = num_posted
        while self._under_way and self._under_way[0].first_byte_s <= now_s:
            message = heapq.heappop(self._under_way)
            port, *behind = message.ports
            number, nbytes, beta = message.number, message.nbytes, max(message.beta, port.beta)
            start_s = max(message.first_byte_s, self._free_at_s.get(port.number, 0))
            self._free_at_s[port.number] = start_s + nbytes * port.beta
            last_s = max(message.last_byte_s, self._free_at_s[port.number])
            if behind:
                first_s = last_s - nbytes * beta
                ahead = _Message(first_s, number, last_s, nbytes, beta, tuple(behind))
                heapq.heappush(self._under_way, ahead)
            else:
                self._arrived.write(number, _TIME.pack(last_s))

    def _message(self, number: int) -> _Message:
        entry = self._posted.read(number, _POSTED)
        assert entry is not None, "a message is counted once its row is there"
        (first_byte_s,), (nbytes,) = _TIME.unpack_from(entry), _NUMBER.unpack_from(entry, 8)
        out, *behind = self._path(*_ENDS.unpack_from(entry, 16))
        last_byte_s = first_byte_s + nbytes * out.beta
        return _Message(first_byte_s, number, last_byte_s, nbytes, out.beta, tuple(behind))


_NUMBER = struct.Struct("<Q")


class Throttle:
    """State that all groups of one rank share: the links, the table of their messages, counts."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        """`folder`: of the run."""
        self.topology = topology
        self.folder = folder
        self.timetable = Timetable(topology, folder)
        self.lateness = Lateness()

    def pop_lateness(self) -> Lateness:
        """Return the counts since the last call."""
        taken, self.lateness = self.lateness, Lateness()
        return taken

    def throttled(self, process_group: Any, name: str, ranks: Sequence[int], member: int) -> Any:
        """Return the process group with throttled messages. ranks: global; member: our index."""
        return ThrottledMessages(process_group, self, name, ranks, member)


class ThrottledMessages:
    """A process group whose send and recv take the time of the links, seen from one member."""

    def __init__(
        self, process_group: Any, throttle: Throttle, name: str, ranks: Sequence[int], member: int
    ) -> None:
        """As for `Throttle.throttled`."""
        self._process_group = process_group
        self._throttle = throttle
        self._name, self._ranks, self._member = name, ranks, member
        self._links = [
            None if rank == ranks[member] else throttle.topology.link_between(ranks[member], rank)
            for rank in ranks
        ]
        # By (source, target): which message of the timetable our n-th one is. The sender writes it.
        self._pairs: dict[tuple[int, int], SharedRows] = {}
        self._num_sent = [0] * len(ranks)
        self._num_received = [0] * len(ranks)

    def __getattr__(self, name: str) -> Any:
        """Everything but send and recv: the process group's own."""
        return getattr(self._process_group, name)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Any:
        """Send a message, which leaves after those before it. Returns its handle."""
        if self._links[dst] is None:
            return self._process_group.send(tensors, dst, tag)
        source, target = self._ranks[self._member], self._ranks[dst]
        nbytes = sum(x.nbytes for x in tensors)
        departure = self._throttle.timetable.depart(source, target, nbytes)
        self._num_sent[dst] += 1
        # Written before the message leaves, so that its receiver finds the number.
        pair = self._pair(self._member, dst)
        pair.write(self._num_sent[dst], _NUMBER.pack(departure.number))
        pair.tidy(self._num_sent[dst])
        return SentWork(self._process_group.send(tensors, dst, tag), departure.left_s)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Any:
        """Receive a message, which arrives when the links allow. Returns its handle."""
        work = self._process_group.recv(tensors, src, tag)
        link = self._links[src]
        if link is None:
            return work
        self._num_received[src] += 1
        link_s = link.seconds(sum(x.nbytes for x in tensors))
        pair = self._pair(src, self._member)
        return ReceivedWork(work, self._throttle, pair, self._num_received[src], link_s)

    def _pair(self, source: int, target: int) -> SharedRows:
        pair = self._pairs.get((source, target))
        if pair is None:
            path = self._throttle.folder / f"links.{self._name}.{source}-{target}"
            pair = self._pairs[source, target] = SharedRows(path, 1, 0)
        return pair


class SentWork:
    """The handle of a message that is sent."""

    def __init__(self, work: Any, left_s: float) -> None:
        """`work`: the backend's handle."""
        self._work, self._left_s = work, left_s

    def wait(self) -> None:
        """Block until the receiver has the bytes and the link would have sent the last one."""
        self._work.wait()
        _sleep_until(self._left_s)


class ReceivedWork:
    """The handle of a message that is received."""

    def __init__(
        self, work: Any, throttle: Throttle, pair: SharedRows, number: int, link_s: float
    ) -> None:
        """`number`: of this message in its pair; `link_s`: its time on a link of its own."""
        self._work, self._throttle = work, throttle
        self._pair, self._number = pair, number
        self._link_s = link_s

    def wait(self) -> None:
        """Block until the bytes are there and the links would have brought the last one."""
        began_s = time.monotonic()
        self._work.wait()
        entry = self._pair.read(self._number, 0)
        assert entry is not None  # written before the message was sent
        self._pair.tidy(self._number)
        (number,) = _NUMBER.unpack_from(entry)
        is_final = False
        while not is_final:
            moment_s, is_final = self._throttle.timetable.arrival(number)
            _sleep_until(moment_s)
        lateness_s = time.monotonic() - max(began_s, moment_s)
        self._throttle.lateness.count(lateness_s, self._link_s)


def _sleep_until(moment_s: float) -> None:
    while (remaining_s := moment_s - time.monotonic()) > 0:
        time.sleep(remaining_s)


LATE_SHARE = 0.1
"""A message is late if its delay is above this share of its time on a link of its own."""


@dataclass(slots=True)
class Lateness:
    """Counts the throttled messages that a rank received, and those that came late.

    Late: the rank was waiting, and got the message later than the links allow. That is the
    machine's own time: copying, waking up, a core that another rank is using.
    """

    num_messages: int = 0
    num_late: int = 0
    late_s: float = 0.0
    """By how many seconds those were late, in all."""

    def count(self, lateness_s: float, link_s: float) -> None:
        """Add a message. link_s: its time on a link of its own."""
        self.num_messages += 1
        if lateness_s > LATE_SHARE * link_s:
            self.num_late += 1
            self.late_s += lateness_s

    def plus(self, other: Lateness) -> Lateness:
        """Return the sums of both."""
        return Lateness(
            self.num_messages + other.num_messages,
            self.num_late + other.num_late,
            self.late_s + other.late_s,
        )
