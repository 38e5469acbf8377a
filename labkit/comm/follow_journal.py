"""Following a journal that is being written, without reading it from the beginning each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.comm.operation import Operation, Region, Timeline
from labkit.comm.read_journal import parse
from labkit.comm.record import RECORD


class JournalFollower:
    """What a rank has written so far; `refresh` reads what is new, and what was not done yet."""

    def __init__(self, path: Path) -> None:
        """`path`: as for `read_journal`."""
        self._path = path
        self._entries: list[Operation | Region] = []
        self._open: set[int] = set()
        """Numbers of the records that have no end yet."""
        self._names: list[Any] = []
        self._names_read = 0
        self.timeline = Timeline()

    def refresh(self) -> bool:
        """Read on; whether anything has changed."""
        try:
            with open(self._path.with_suffix(".journal"), "rb") as file:
                again = {}
                for number in self._open:
                    file.seek(number * RECORD.size)
                    again[number] = file.read(RECORD.size)
                file.seek(len(self._entries) * RECORD.size)
                new = file.read()
            self._read_names()  # after the records: a name is on disk before its number is
        except FileNotFoundError:
            return False
        changed = [self._take(number, RECORD.unpack(data)) for number, data in again.items()]
        for fields in RECORD.iter_unpack(new[: len(new) // RECORD.size * RECORD.size]):
            if fields[0] == 0:
                break
            changed.append(self._take(len(self._entries), fields))
        if not any(changed):
            return False
        operations = [entry for entry in self._entries if isinstance(entry, Operation)]
        regions = [entry for entry in self._entries if isinstance(entry, Region)]
        self.timeline = Timeline(operations, regions)
        return True

    def _take(self, number: int, fields: tuple[Any, ...]) -> bool:
        """Enter a record; whether that changes anything."""
        entry = parse(number, fields, self._names)
        end_s = entry.end_s if isinstance(entry, Region) else entry.done_s
        if number == len(self._entries):
            self._entries.append(entry)
            if end_s is None:
                self._open.add(number)
            return True
        if end_s is not None:
            self._open.discard(number)
        has_changed = entry != self._entries[number]
        self._entries[number] = entry
        return has_changed

    def _read_names(self) -> None:
        with open(self._path.with_suffix(".names"), "rb") as file:
            file.seek(self._names_read)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._names_read += len(whole) + 1
            self._names += [json.loads(line)[1] for line in whole.split(b"\n")]
