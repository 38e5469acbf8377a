"""Following a journal that is being written, without reading it from the beginning each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.comm.operation import Operation, Region, Timeline
from labkit.comm.read_journal import decoded, parse, records_of
from labkit.comm.record import RECORD


class JournalFollower:
    """What a rank has written so far; `refresh` reads what is new, and what was not done yet.

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
        """Read on; whether anything has changed."""
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
        """Whether a record that was not done has changed."""
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
