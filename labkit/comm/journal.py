"""A rank's journal: each operation is written down *before* it is performed.

The journal is a memory-mapped file of fixed-size records. A store into a mapped page survives the
process that made it, so the driver can read what a rank was doing after the rank was killed, and
while it is blocked inside C++. Text (source lines, shapes, names) is written once into a second
file and referred to by number (format: record.py).

Cost: a few microseconds per operation (benchmarks/journal.py). PyTorch's Flight Recorder keeps
the same kind of record in C++; with gloo it sees only collectives, and it must be asked for its
dump while the process is alive.
"""

import json
import mmap
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from labkit.comm.callers import Call, Callers
from labkit.comm.operation import NETWORK, P2P_KINDS, SHARED_MEMORY
from labkit.comm.record import (
    BLOCKING,
    DONE_AT,
    FAILED,
    FLAGS_AT,
    IN_BACKGROUND,
    KIND_CODE,
    NO_NAME,
    NO_PEER,
    RECORD,
    REDUCE_CODE,
    SHARED,
    TIME,
    WAITED_AT,
)


class Journal:
    """Writer of one rank's journal; see `read_journal` for the other end."""

    def __init__(self, path: Path, num_records: int = 4096) -> None:
        """Open a new journal at `path` (two files: `.journal` and `.names`)."""
        self._file: BinaryIO | None = open(path.with_suffix(".journal"), "w+b")
        self._names_file = open(path.with_suffix(".names"), "ab", buffering=0)
        self._map = self._mapped(num_records)
        self._capacity = num_records
        self._length = 0
        self.num_collectives = 0
        self._lock = threading.Lock()
        self._main_thread = threading.get_ident()
        self._names: dict[object, int] = {}
        self._callers = Callers(self._name)
        _of_this_process.add(self)

    def _mapped(self, num_records: int) -> mmap.mmap:
        if self._file is None:
            return mmap.mmap(-1, num_records * RECORD.size)
        self._file.truncate(num_records * RECORD.size)  # sparse: unused records take no disk
        return mmap.mmap(self._file.fileno(), num_records * RECORD.size)

    def write_to_nobody(self) -> None:
        """From now on what is posted goes to memory of this process's own."""
        self._file, self._lock = None, threading.Lock()  # another thread may have held the old one
        self._names_file = open(os.devnull, "ab", buffering=0)
        self._map = self._mapped(self._capacity)

    def _name(self, kind: str, value: object) -> int:
        """The number of a name; a new name is on disk before anyone can use the number."""
        key = (kind, value)
        number = self._names.get(key)
        if number is None:
            with self._lock:
                number = self._names.get(key)
                if number is None:
                    number = len(self._names)
                    self._names_file.write(json.dumps([kind, value]).encode() + b"\n")
                    self._names[key] = number
        return number

    def group(self, name: str, ranks: tuple[int, ...]) -> int:
        """Enter a group; returns the number by which `post` refers to it."""
        return self._name("group", (name, ranks))

    def post(
        self,
        kind: str,
        group: int,
        sequence: int,
        x: torch.Tensor,
        *,
        sent_bytes: int,
        received_bytes: int,
        blocking: bool,
        reduce: str | None = None,
        peer: int = NO_PEER,
        splits: Sequence[Sequence[int]] | None = None,
        call: Call | None = None,
        label: str | None = None,
        medium: str = NETWORK,
    ) -> int:
        """Write down an operation that is about to begin; returns its record's number.

        call: who calls, from `caller`; asked here where not given.
        """
        site, origin, *_ = call or self.caller()
        # Those that torch has recorded too: flight_recorder.py compares the numbers.
        self.num_collectives += kind not in P2P_KINDS and medium == NETWORK
        flags = (BLOCKING if blocking else 0) | (SHARED if medium == SHARED_MEMORY else 0)
        if threading.get_ident() != self._main_thread:
            flags |= IN_BACKGROUND
        now = time.monotonic()
        return self._append(
            KIND_CODE[kind],
            flags,
            REDUCE_CODE[reduce],
            group,
            self._name("dtype", str(x.dtype)),
            sequence,
            peer,
            self._name("shape", tuple(x.shape)),
            NO_NAME if splits is None else self._name("splits", tuple(map(tuple, splits))),
            site,
            origin,
            NO_NAME if label is None else self._name("label", label),
            x.nbytes,
            sent_bytes,
            received_bytes,
            now,
            now if blocking else 0.0,
            0.0,
        )

    def begin_region(self, name: str) -> int:
        """Write down that a named span of work begins; `done` ends it."""
        code, now = KIND_CODE["region"], time.monotonic()
        numbers = (0, 0, 0, 0, 0, NO_PEER, self._name("region", name), 0, 0, 0)
        return self._append(code, *numbers, NO_NAME, 0, 0, 0, now, 0.0, 0.0)

    def _append(self, kind: int, *fields: float) -> int:
        with self._lock:  # a rank may post from several threads
            if self._length == self._capacity:
                # The old map is not closed: another thread may be writing a time into it just now,
                # and that is the same file.
                self._capacity *= 2
                self._map = self._mapped(self._capacity)
            record = self._length
            self._length = record + 1
            RECORD.pack_into(self._map, record * RECORD.size, 0, *fields)
            self._map[record * RECORD.size] = kind  # last: now a reader may take it
        return record

    def waiting(self, record: int) -> None:
        """The rank begins to block on this operation."""
        TIME.pack_into(self._map, record * RECORD.size + WAITED_AT, time.monotonic())

    def done(self, record: int) -> None:
        """The rank has the operation's result, or leaves the region."""
        TIME.pack_into(self._map, record * RECORD.size + DONE_AT, time.monotonic())

    def failed(self, record: int) -> None:
        """The operation raised an error."""
        self._map[record * RECORD.size + FLAGS_AT] |= FAILED
        self.done(record)

    def caller(self) -> Call:
        """The line that called the group, and the reader's own lines that led there."""
        return self._callers.find()


_of_this_process: weakref.WeakSet[Journal] = weakref.WeakSet()


def _leave_to_the_rank() -> None:
    """What a rank has forked, such as a DataLoader's worker, is no rank: two would write one file.

    It may mark regions, or make a world of its own.
    """
    for journal in _of_this_process:
        journal.write_to_nobody()


os.register_at_fork(after_in_child=_leave_to_the_rank)
