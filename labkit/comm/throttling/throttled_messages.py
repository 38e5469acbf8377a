"""A process group whose send and recv take the time of the links; all else goes past them.

A Group hands its operations to one of these only in a run with a topology: without one, nothing is
added to any call. (staging.py does the same for ranks that share a GPU.)
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.throttling.lateness import Lateness
from labkit.comm.throttling.timetable import Timetable
from labkit.comm.topology import Topology

_NUMBER = struct.Struct("<Q")


class Throttle:
    """What all groups of one rank share: the links, the table of their messages, the counts."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        """`folder`: of the run."""
        self.topology = topology
        self.folder = folder
        self.timetable = Timetable(topology, folder)
        self.lateness = Lateness()

    def take_lateness(self) -> Lateness:
        """The counts since this was last asked."""
        taken, self.lateness = self.lateness, Lateness()
        return taken

    def throttled(self, process_group: Any, name: str, ranks: Sequence[int], member: int) -> Any:
        """A process group that throttles messages. `ranks`: global; `member`: our place in them."""
        return ThrottledMessages(process_group, self, name, ranks, member)


class ThrottledMessages:
    """A process group, seen from one member."""

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
        """The handle of a message that leaves now, or when those before it have left."""
        if self._links[dst] is None:
            return self._process_group.send(tensors, dst, tag)
        source, target = self._ranks[self._member], self._ranks[dst]
        nbytes = sum(x.nbytes for x in tensors)
        departure = self._throttle.timetable.depart(source, target, nbytes)
        self._num_sent[dst] += 1
        # Before the message is on its way: whoever has received it finds the number.
        pair = self._pair(self._member, dst)
        pair.write(self._num_sent[dst], _NUMBER.pack(departure.number))
        pair.tidy(self._num_sent[dst])
        return SentWork(self._process_group.send(tensors, dst, tag), departure.left_s)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Any:
        """The handle of a message that arrives when the links have brought it."""
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
        """`number`: of this message in its pair; `link_s`: what it takes on a link of its own."""
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
