"""When messages leave and when they arrive: a table that the ranks of a run share.

    links                how many messages there are, and of each port out when it is free again
    links.messages.0     a row per message: what is known when it is posted | when it arrives

Known when it is posted: when its last byte leaves, and when the first one reaches the next port.
From there a message is followed port by port, as time goes on: when a port is reached, every
message that comes to it before has been posted, so that the order is final. Each process follows
all messages by itself, from the same rows in the same order, and comes to the same times.
(All times are of one clock: time.monotonic(), for all processes of a machine, or replay.py's own.)
"""

from __future__ import annotations

import fcntl
import functools
import heapq
import mmap
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.topology import Port, Topology

_TIME = struct.Struct("<d")
_NUMBER = struct.Struct("<Q")
_ENDS = struct.Struct("<II")
_POSTED, _ARRIVED = 0, 1  # columns of a row


class Departure(NamedTuple):
    """What is known of a message when it is posted."""

    number: int
    """By which `arrival` knows it."""
    left_s: float
    """When its last byte leaves the sender's port."""


class Moment(NamedTuple):
    """When a message arrives, as far as it is known."""

    at_s: float
    """Its last byte arrives; or, if that is not known yet: to be asked again."""
    is_final: bool


class _Message(NamedTuple):
    """A message on its way to a port. They sort by the time at which they come there."""

    first_byte_s: float
    number: int
    last_byte_s: float
    """When it comes there."""
    nbytes: int
    beta: float
    """Seconds per byte between the two: of the narrowest port so far."""
    ports: tuple[Port, ...]
    """This one and those behind it."""


class Timetable:
    """One process's view of the table."""

    def __init__(
        self, topology: Topology, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder`: of the run. Whoever comes first makes the files there. `clock`: in seconds."""
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
        # A heap: messages that we have read, and of which the first byte was not there yet.
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
        """A message is posted now, from one rank to another (global numbers), over their link."""
        link = self._link_between(source, target)
        assert link is not None, "messages without a link are not in the table"
        out = self._path(source, target)[0]
        free_at = _NUMBER.size + out.number * _TIME.size
        with self._locked():
            # Read under the lock: arrivals that are worked out are of first bytes before now.
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
        """When a message arrives; before its first byte is there, when to ask again."""
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

        A port takes the bytes as they come. It is free for others for the rest of its bandwidth:
        it is busy for as long as the message would take at its own speed.
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
