"""A table in memory that processes of one host share: a row per event, an entry per participant.

world.calls.0    rows 0 to 4095, each `width` entries of 32 bytes; world.calls.1: the next 4096

Each participant writes only its own entries, so no lock is needed. The files are sparse: rows that
nobody writes take no room. They lie in the run's folder and go with it.

An entry's number is written last and read first. x86 shows stores in their order, so an entry that
has its number is complete. ARM may show the number some nanoseconds before the rest: the entry then
reads as zeros, or as partly so. A barrier would cost each operation as much as the entry itself.
Instead no reader concludes from an entry alone that ranks differ: mismatch_detector.py asks the
journals, memory_order.py looks again. What throttle.py writes is read under a lock of the kernel's,
or after a message that was sent later.
"""

import mmap
import struct
from pathlib import Path

ROWS_PER_FILE = 4096
_TIDY_EVERY = 1024
# The row's number plus one comes last: while it is zero, or another one, there is no entry.
_CONTENT = struct.Struct("<8s8s8s")
_NUMBER = struct.Struct("<Q")
ENTRY_BYTES = _CONTENT.size + _NUMBER.size


class SharedRows:
    """One participant's view of a table."""

    def __init__(self, path: str | Path, width: int, column: int) -> None:
        """`path`: the files' name, without their number. `column`: which entries are ours."""
        self._path = path
        self._width = width
        self._column = column
        self._maps: dict[int, mmap.mmap] = {}

    def write(self, row: int, first: bytes, second: bytes = b"", third: bytes = b"") -> None:
        """Write our entry of a row: up to three times 8 bytes."""
        table, offset = self._at(row, self._column)
        _CONTENT.pack_into(table, offset, first, second, third)
        _NUMBER.pack_into(table, offset + _CONTENT.size, row + 1)

    def read(self, row: int, column: int) -> bytes | None:
        """Return an entry's 24 bytes, or None. A new entry may be partial: see above."""
        table, offset = self._at(row, column)
        # The number is written last, so it is read first.
        (number,) = _NUMBER.unpack_from(table, offset + _CONTENT.size)
        return table[offset : offset + _CONTENT.size] if number == row + 1 else None

    def tidy(self, row: int, before: int | None = None) -> None:
        """At every 1024th row, forget the rows before it, or before the row `before`."""
        if row % _TIDY_EVERY == 0:
            self.forget_before(row if before is None else before)

    def forget_before(self, row: int) -> None:
        """Close the files that only hold earlier rows."""
        for number in list(self._maps):  # another thread may be opening one
            if number < row // ROWS_PER_FILE:
                self._maps.pop(number, None)

    def _at(self, row: int, column: int) -> tuple[mmap.mmap, int]:
        number, index = divmod(row, ROWS_PER_FILE)
        table = self._maps.get(number)
        if table is None:
            table = self._maps[number] = self._opened(number)
        return table, (index * self._width + column) * ENTRY_BYTES

    def _opened(self, number: int) -> mmap.mmap:
        size = ROWS_PER_FILE * self._width * ENTRY_BYTES
        # The first process makes the file; setting the same size again changes nothing.
        with open(f"{self._path}.{number}", "a+b") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)
