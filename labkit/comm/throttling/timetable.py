"""When messages leave and when they arrive: a table that the ranks of a run share.

    links                how many messages there are, and of each port when it is free again
    links.messages.0     a row per message: what is known when it is posted | when it arrives

The arrival of a message is worked out once its first byte is there, and not when it is posted. By
then every message that comes to that port before it has been posted, so that the order is final.
(All times are of time.monotonic(), which is one clock for all processes of a machine.)
"""

from __future__ import annotations

import fcntl
import heapq
import mmap
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.topology import Topology

_TIME = struct.Struct("<d")
_NUMBER = struct.Struct("<Q")
_POSTED, _ARRIVED = 0, 1  # columns of a row


class Departure(NamedTuple):
    """What is known of a message when it is posted."""

    number: int
    """By which `arrival` knows it."""
    left_s: float
    """When its last byte leaves the sender's port."""


class _Message(NamedTuple):
    """A message on its way to a port in. They sort by the time at which they come there."""

    first_byte_s: float
    number: int
    transfer_s: float
    port: int


class Timetable:
    """One process's view of the table."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        """`folder`: of the run. Whoever comes first makes the files there."""
        self._topology = topology
        self._ranks_per_slow_link = topology.ranks_per_host // topology.slow_links_per_host
        num_ports = topology.world_size + topology.hosts * topology.slow_links_per_host
        size = _NUMBER.size + 2 * num_ports * _TIME.size
        self._file = open(folder / "links", "a+b")
        self._file.truncate(size)
        self._state = mmap.mmap(self._file.fileno(), size)
        self._out = _NUMBER.size
        self._in = self._out + num_ports * _TIME.size
        self._posted = SharedRows(folder / "links.messages", 2, _POSTED)
        self._arrived = SharedRows(folder / "links.messages", 2, _ARRIVED)
        self._threads = threading.Lock()
        # A heap: messages that we have read, and of which the first byte was not there yet.
        self._under_way: list[_Message] = []
        self._num_read = 0

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
        link = self._topology.link_between(source, target)
        assert link is not None, "messages without a link are not in the table"
        out, into = self._ports(source, target)
        transfer_s = nbytes * link.beta
        with self._locked():
            # Read under the lock: arrivals that are worked out are of first bytes before now.
            start_s = max(time.monotonic(), self._free_at(self._out, out))
            self._set_free_at(self._out, out, start_s + transfer_s)
            (number,) = _NUMBER.unpack_from(self._state)
            first_byte_s = start_s + link.alpha
            self._posted.write(
                number, _TIME.pack(first_byte_s), _TIME.pack(transfer_s), _NUMBER.pack(into)
            )
            _NUMBER.pack_into(self._state, 0, number + 1)
        return Departure(number, start_s + transfer_s)

    def first_byte_at(self, number: int) -> float:
        """When the first byte of a message reaches its port in."""
        return self._message(number).first_byte_s

    def arrival(self, number: int) -> float:
        """When a message's last byte arrives; to be asked when its first byte is there."""
        with self._locked():
            self._work_out_arrivals(time.monotonic())
            (arrived_s,) = _TIME.unpack_from(self._known(self._arrived.read(number, _ARRIVED)))
            self._posted.tidy(number)
            self._arrived.tidy(number)
        return arrived_s

    def _work_out_arrivals(self, now_s: float) -> None:
        """Of all messages whose first byte is there, in the order of their first bytes.

        Every process does this for all ports, as far as no other has done it already.
        """
        (num_posted,) = _NUMBER.unpack_from(self._state)
        for number in range(self._num_read, num_posted):
            heapq.heappush(self._under_way, self._message(number))
        self._num_read = num_posted
        while self._under_way and self._under_way[0].first_byte_s <= now_s:
            message = heapq.heappop(self._under_way)
            if self._arrived.read(message.number, _ARRIVED) is None:
                start_s = max(message.first_byte_s, self._free_at(self._in, message.port))
                arrived_s = start_s + message.transfer_s
                self._set_free_at(self._in, message.port, arrived_s)
                self._arrived.write(message.number, _TIME.pack(arrived_s))

    def _message(self, number: int) -> _Message:
        entry = self._known(self._posted.read(number, _POSTED))
        (first_byte_s,), (transfer_s,) = _TIME.unpack_from(entry), _TIME.unpack_from(entry, 8)
        return _Message(first_byte_s, number, transfer_s, *_NUMBER.unpack_from(entry, 16))

    @staticmethod
    def _known(entry: bytes | None) -> bytes:
        assert entry is not None, "a message is asked for before it was posted or had arrived"
        return entry

    def _ports(self, source: int, target: int) -> tuple[int, int]:
        """(out, in) of a message: ports of the two ranks, or of their hosts' slow links.

        A port's number is that of its rank; those of slow links come after the last rank.
        """
        if self._topology.host_of(source) == self._topology.host_of(target):
            return source, target
        first, sharers = self._topology.world_size, self._ranks_per_slow_link
        return first + source // sharers, first + target // sharers

    def _free_at(self, table: int, port: int) -> float:
        (free_s,) = _TIME.unpack_from(self._state, table + port * _TIME.size)
        return free_s

    def _set_free_at(self, table: int, port: int, free_s: float) -> None:
        _TIME.pack_into(self._state, table + port * _TIME.size, free_s)
