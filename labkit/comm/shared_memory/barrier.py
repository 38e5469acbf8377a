"""A barrier among processes of one host, in two halves: `arrive`, and later `wait`.

Every rank has a FIFO from every other one. `arrive` writes a byte into the FIFOs to all other
ranks; `wait` reads a byte from each of the rank's own. A rank that waits sleeps in the
kernel, and takes no core from those that work. (Spinning on flags took more than twice as long with
4 ranks on 2 cores, even with sched_yield.) When a process ends, its ends of the FIFOs are closed,
and the others read that.

A rank that leaves gives the reason in a last byte: its part of an operation failed, or it no longer
uses the memory, for example because its function has returned. A killed process writes none.

The byte also makes it safe to read what others have stored in shared memory. On ARM a store may
become visible after a later one, so a flag may be seen before its data. (x86 keeps stores in
order.) A flag would need a release and an acquire, which Python does not have. The kernel's lock on
a FIFO has both: a rank that has read the byte sees all that was stored before it was written, and
may overwrite all that was read before.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from labkit.comm.member import mark
from labkit.comm.operation import ranks_named, verb

_ARRIVED, _FAILED, _DROPPED = b".", b"!", b"-"
_WHY = {
    b"": "its process ended",
    _FAILED: "its part of an operation failed",
    _DROPPED: "it has returned, or dropped its SharedMemory, and calls no operation of it any "
    "more. Every rank makes the same calls, and keeps the memory until its last one",
}


class Barrier:
    """One rank's ends of the FIFOs.

    Each rank calls `arrive` and `wait` in turns, and `arrive` first.
    """

    def __init__(self, folder: Path, ranks: Sequence[int], member: int) -> None:
        """Make the FIFOs from the other members, in a folder of our own.

        `ranks`: global numbers of the members, which errors name; `member`: which of them we are.
        """
        self._ranks, self.member = ranks, member
        self._incoming: dict[int, int] = {}
        """By file descriptor: which member writes to it."""
        self._outgoing: list[int] = []
        self._placeholders: list[int] = []
        self.is_closed = False
        for peer in self._others:
            path = folder / str(peer)
            os.mkfifo(path, 0o600)
            self._incoming[os.open(path, os.O_RDONLY | os.O_NONBLOCK)] = peer
            # On macOS a FIFO that nobody has opened for writing yet reads as one that was closed.
            self._placeholders.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    @property
    def _others(self) -> list[int]:
        return [member for member in range(len(self._ranks)) if member != self.member]

    def connect(self, folders: Sequence[Path], timeout_s: float) -> None:
        """Open the FIFOs in the other members' folders; return when all have.

        RuntimeError where one is gone by now, or is not there after `timeout_s`.
        """
        for peer in self._others:
            try:
                path = folders[peer] / str(self.member)
                self._outgoing.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:  # nobody has it open for reading
                raise self._gone(peer) from error
        self.arrive()
        self.wait(timeout_s)
        while self._placeholders:
            os.close(self._placeholders.pop())

    def arrive(self) -> None:
        """Tell the others that they may read what this rank has stored so far."""
        self._write_to_all(_ARRIVED)

    def wait(self, timeout_s: float) -> None:
        """Return when all others have arrived.

        RuntimeError when one is gone instead, or has not come after `timeout_s`.
        """
        if self.is_closed:
            raise _consequence(
                "this shared memory is out of use since an operation in it failed; see that error"
            )
        deadline_s = time.monotonic() + timeout_s
        missing = dict(self._incoming)
        poll = select.poll()
        for descriptor in missing:
            poll.register(descriptor, select.POLLIN)
        while missing:
            remaining_s = deadline_s - time.monotonic()
            ready = poll.poll(math.ceil(max(remaining_s, 0) * 1000))
            if not ready and remaining_s <= 0:
                late = [self._ranks[peer] for peer in missing.values()]
                raise _consequence(
                    f"{ranks_named(late)} {verb(late, 'has')} not come within {timeout_s:g} s"
                )
            for descriptor, _ in ready:
                peer = missing.pop(descriptor)
                last_byte = os.read(descriptor, 1)
                if last_byte != _ARRIVED:
                    raise self._gone(peer, last_byte)
                poll.unregister(descriptor)

    def close(self) -> None:
        """Leave for good, after an error: the others' next wait fails."""
        self._leave(_FAILED)

    def __del__(self) -> None:
        self._leave(_DROPPED)

    def _leave(self, why: bytes) -> None:
        self.is_closed = True
        self._write_to_all(why)
        for descriptor in (*self._incoming, *self._outgoing, *self._placeholders):
            os.close(descriptor)
        self._incoming, self._outgoing, self._placeholders = {}, [], []

    def _write_to_all(self, byte: bytes) -> None:
        for descriptor in self._outgoing:
            with contextlib.suppress(BrokenPipeError):  # that rank is gone: the next wait raises
                os.write(descriptor, byte)

    def _gone(self, peer: int, last_byte: bytes = b"") -> RuntimeError:
        """Return the error for a member that has left. last_byte: what it wrote last."""
        return _consequence(
            f"rank {self._ranks[peer]} has left the shared memory: {_WHY[last_byte]}"
        )


def _consequence(text: str) -> RuntimeError:
    """Return an error that another rank has caused."""
    error = RuntimeError(text)
    mark(error)
    return error
