"""A rank's journal: each operation is written down *before* it is performed.

    rank-2.journal   96 bytes per operation: numbers, times
    rank-2.names     one JSON line per name (source line, shape, label); the journal refers to it by
                     its line number; `origin` names a list of sites, from the call outwards

The journal is a memory-mapped file of fixed-size records. A store into a mapped page survives its
process. So the driver reads what a rank was doing while the rank is blocked inside C++, and after
it was killed.

Journal writes. `read_journal` reads the file back as operations and regions. JournalFollower reads
a file that grows, without starting again from its beginning.

Cost: a few microseconds per operation (benchmarks/journal.py). PyTorch's Flight Recorder keeps the
same kind of record in C++; with gloo it sees only collectives, and the process must be alive when
it is asked.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from labkit.comm.callers import Call, Callers
from labkit.comm.operation import (
    NETWORK,
    P2P_KINDS,
    SHARED_MEMORY,
    Operation,
    Region,
    Site,
    Timeline,
)

# kind, flags, reduce, group, dtype, sequence, peer, shape, splits, site, origin,
# label, payload, sent and received bytes, times posted, waited, completed, done
RECORD = struct.Struct("<BBBxIIIiIIIIIQQQdddd")
TIME = struct.Struct("<d")
FLAGS_AT = 1
WAITED_AT = RECORD.size - 3 * TIME.size
COMPLETED_AT = RECORD.size - 2 * TIME.size
DONE_AT = RECORD.size - TIME.size

BLOCKING, FAILED, SHARED, IN_BACKGROUND = 1, 2, 4, 8
NO_PEER = -1
NO_NAME = 2**32 - 1

KINDS = (
    "send recv all_reduce reduce_scatter all_gather all_to_all broadcast gather scatter barrier "
    "split region share_memory close"
).split()
KIND_CODE = {kind: code for code, kind in enumerate(KINDS, start=1)}  # 0 marks an unused record
REDUCES = [None, "sum", "mean", "max", "min"]
REDUCE_CODE = {reduce: code for code, reduce in enumerate(REDUCES)}


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
        _JOURNALS.add(self)

    def _mapped(self, num_records: int) -> mmap.mmap:
        if self._file is None:
            return mmap.mmap(-1, num_records * RECORD.size)
        self._file.truncate(num_records * RECORD.size)  # sparse: unused records take no disk
        return mmap.mmap(self._file.fileno(), num_records * RECORD.size)

    def detach(self) -> None:
        """Write later entries to memory of this process alone, and no longer to the files."""
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

        call: the line that calls, from `caller`; None: found here.
        """
        site, origin, *_ = call or self.caller()
        # torch records these collectives, too: recorder.py compares the two numbers.
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
            0.0,
        )

    def begin_region(self, name: str) -> int:
        """Write down that a named span of work starts; `done` writes its end."""
        code, now = KIND_CODE["region"], time.monotonic()
        numbers = (0, 0, 0, 0, 0, NO_PEER, self._name("region", name), 0, 0, 0)
        return self._append(code, *numbers, NO_NAME, 0, 0, 0, now, 0.0, 0.0, 0.0)

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
            self._map[record * RECORD.size] = kind  # last: from now on readers see it
        return record

    def waiting(self, record: int) -> None:
        """Write down that the rank starts to block on this operation."""
        TIME.pack_into(self._map, record * RECORD.size + WAITED_AT, time.monotonic())

    def completed(self, record: int) -> None:
        """Write down that the backend is done with the operation. Any thread may call it."""
        TIME.pack_into(self._map, record * RECORD.size + COMPLETED_AT, time.monotonic())

    def done(self, record: int) -> None:
        """Write down that the rank has the operation's result, or leaves the region."""
        TIME.pack_into(self._map, record * RECORD.size + DONE_AT, time.monotonic())

    def failed(self, record: int) -> None:
        """Write down that the operation raised an error."""
        self._map[record * RECORD.size + FLAGS_AT] |= FAILED
        self.done(record)

    def caller(self) -> Call:
        """The line that called the group, and the reader's own lines that led there."""
        return self._callers.find()


_JOURNALS: weakref.WeakSet[Journal] = weakref.WeakSet()


def _detach_after_fork() -> None:
    """Detach the journal in a forked process, such as a DataLoader's worker: it is no rank.

    The process may still name regions, or make a world of its own.
    """
    for journal in _JOURNALS:
        journal.detach()


os.register_at_fork(after_in_child=_detach_after_fork)


def read_journal(path: Path, first: int = 0) -> Timeline:
    """Return the journal written at `path` so far, on the clock of time.monotonic().

    first: number of records to skip, for a reader that has seen them.

    Safe at any time: while the rank writes, after it was killed, and before it began (empty).
    """
    timeline = Timeline()
    try:
        with open(path.with_suffix(".journal"), "rb") as file:
            records = list(records_of(file, first))
        # After the records: a name is on disk before its number is.
        lines = path.with_suffix(".names").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return timeline
    names = decoded(lines)
    for index, fields in enumerate(records, start=first):
        entry = parse(index, fields, names)
        if isinstance(entry, Region):
            timeline.regions.append(entry)
        else:
            timeline.operations.append(entry)
    return timeline


class JournalFollower:
    """The operations and regions of a rank so far. `refresh` reads what was added or completed.

    `timeline` grows in place.
    """

    def __init__(self, path: Path) -> None:
        """`path`: as for `read_journal`."""
        self._path = path
        self._num_records = 0
        self._open: dict[int, int] = {}
        """Records that have no end yet: number, and place among operations or regions."""
        self._names: list[Any] = []
        self._names_read = 0
        self.timeline = Timeline()

    def refresh(self) -> bool:
        """Read what is new. Return whether anything has changed."""
        try:
            with open(self._path.with_suffix(".journal"), "rb") as file:
                again = {}
                for number in self._open:
                    file.seek(number * RECORD.size)
                    again[number] = file.read(RECORD.size)
                new = list(records_of(file, self._num_records))
            self._read_names()  # after the records: a name is on disk before its number is
        except FileNotFoundError:
            return False
        changed = [self._look_again(number, RECORD.unpack(data)) for number, data in again.items()]
        for fields in new:
            self._append(fields)
        return bool(new) or any(changed)

    def _append(self, fields: tuple[Any, ...]) -> None:
        number = self._num_records
        entry = parse(number, fields, self._names)
        entries = self._entries_like(entry)
        if _end_s(entry) is None:
            self._open[number] = len(entries)
        entries.append(entry)
        self._num_records += 1

    def _look_again(self, number: int, fields: tuple[Any, ...]) -> bool:
        """Update an entry that was not done. Return whether it has changed."""
        entry, place = parse(number, fields, self._names), self._open[number]
        entries = self._entries_like(entry)
        if _end_s(entry) is not None:
            del self._open[number]
        has_changed = entry != entries[place]
        entries[place] = entry
        return has_changed

    def _entries_like(self, entry: Operation | Region) -> list[Any]:
        is_region = isinstance(entry, Region)
        return self.timeline.regions if is_region else self.timeline.operations

    def _read_names(self) -> None:
        with open(self._path.with_suffix(".names"), "rb") as file:
            file.seek(self._names_read)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._names_read += len(whole) + 1
            self._names += decoded(whole.split(b"\n"))


def _end_s(entry: Operation | Region) -> float | None:
    return entry.end_s if isinstance(entry, Region) else entry.done_s


_RECORDS_AT_ONCE = 1024


def records_of(file: BinaryIO, first: int) -> Iterator[tuple[Any, ...]]:
    """Yield the records from number `first` on, up to the unused part of the file."""
    file.seek(first * RECORD.size)
    while data := file.read(_RECORDS_AT_ONCE * RECORD.size):
        for fields in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
            if fields[0] == 0:
                return
            yield fields


def decoded(lines: Iterable[bytes]) -> list[Any]:
    """Decode lines of the file of names, each once: many records refer to one name."""
    return [_decoded(*json.loads(line)) for line in lines]


def _decoded(kind: str, value: Any) -> Any:
    return _DECODE[kind](value) if kind in _DECODE else value


def _splits(sent_and_received: list[list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sent, received = sent_and_received
    return tuple(sent), tuple(received)


def _group(name_and_ranks: list[Any]) -> tuple[str, tuple[int, ...]]:
    name, ranks = name_and_ranks
    return name, tuple(ranks)


def _path(lines: list[list[Any]]) -> tuple[Site, tuple[Site, ...]]:
    first, *callers = (Site(*line) for line in lines)
    return first, tuple(callers)


_DECODE: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda name: name.removeprefix("torch."),
    "group": _group,
    "path": _path,
    "shape": tuple,
    "site": lambda line: Site(*line),
    "splits": _splits,
}


def parse(index: int, fields: tuple, names: Sequence[Any]) -> Operation | Region:
    """Return one record as an operation or a region. `names`: the decoded file of names."""
    if KINDS[fields[0] - 1] == "region":
        return Region(names[fields[7]], fields[15], fields[18] or None)
    return _operation(index, fields, names)


def _operation(index: int, fields: tuple, names: Sequence[Any]) -> Operation:
    kind, flags, reduce, group, dtype, sequence, peer, shape, splits, site, origin = fields[:11]
    label, payload_bytes, sent_bytes, received_bytes = fields[11:15]
    posted_s, waited_s, completed_s, done_s = fields[15:]
    group_name, ranks = names[group]
    line, callers = names[origin]
    return Operation(
        index=index,
        kind=KINDS[kind - 1],
        blocking=bool(flags & BLOCKING),
        group=ranks,
        group_name=group_name,
        sequence=sequence,
        reduce=REDUCES[reduce],
        peer=None if peer == NO_PEER else peer,
        dtype=names[dtype],
        shape=names[shape],
        payload_bytes=payload_bytes,
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        site=names[site],
        origin=line,
        posted_s=posted_s,
        waited_s=waited_s or None,
        done_s=done_s or None,
        failed=bool(flags & FAILED),
        splits=None if splits == NO_NAME else names[splits],
        callers=callers,
        label=None if label == NO_NAME else names[label],
        medium=SHARED_MEMORY if flags & SHARED else NETWORK,
        in_background=bool(flags & IN_BACKGROUND),
        completed_s=completed_s or None,
    )
