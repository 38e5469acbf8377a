"""Rollouts that are used exactly once: a log on disk, and a cursor in the checkpoint.

    log           | 0 | 1 | 2 | 3 | 4 | 5 | 6 | to            appended by the ranks that generate
    checkpoint    step 40, consumed 3                         what the parameters have learned from
    after a kill  3, 4, 5, 6 are used; "to", a torn record, is cut off

Generated tokens are expensive, and a training step that was lost must see its rollouts again, while
one that was saved must not. So "consumed" belongs to the parameters: the bank is one of the `extra`
of a Checkpointer, and its cursor is saved, loaded and lost with them. A cursor that is moved in a
file of its own, before the step is saved, loses rollouts; one that is moved after it uses them
twice.

Record: one for each `append`, with length and CRC-32 of what follows; for each rollout its length,
the version of the policy that generated it, and the payload. Numbers are 4 bytes, little-endian. An
append counts when it has returned, since it is on the disk by then. So only the last record can be
torn: one in the middle that is not as written was changed later.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit import arguments
from labkit.checkpoint.disk import Disk, read_into

_PAIR = struct.Struct("<II")


class Rollout(NamedTuple):
    """A payload, and the step of the parameters that generated it."""

    version: int
    payload: bytes


class RolloutBank:
    """The rollouts of one job, in the order in which they were appended.

    bank = RolloutBank("rollouts.log")
    checkpointer = Checkpointer(folder, policy, optimizer, extra={"rollouts": bank})
    bank.append([Rollout(step, tokens) for tokens in generate(policy)])
    train(policy, bank.take(64))
    checkpointer.save(step + 1)
    """

    def __init__(self, path: str | Path, *, disk: Disk | None = None) -> None:
        """Open the log, or make it. A torn record at its end is cut off. disk: see Checkpointer.

        ValueError for a record that is damaged and has others behind it: bytes have changed.
        """
        self.path, self._disk = Path(path), disk or Disk()
        self.consumed = 0
        """How many rollouts the parameters have learned from."""
        self._disk.make_folder(self.path.parent)
        self._file = self._disk.open_to_append(self.path)
        self._places, self._end = _scan(self.path)
        self._cut_off()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_left(self) -> int:
        """How many rollouts wait to be used."""
        return len(self) - self.consumed

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Add rollouts behind the others. They are on the disk when it returns.

        OSError where they cannot be written: then none of them counts, and the log is as before.
        """
        body = b"".join(_PAIR.pack(len(data), version) + data for version, data in rollouts)
        try:
            self._disk.write(self._file, _PAIR.pack(len(body), zlib.crc32(body)) + body)
            self._disk.sync(self._file)
        except OSError:
            self._cut_off()
            raise
        self._places += _places_in(body, self._end + _PAIR.size)
        self._end += _PAIR.size + len(body)

    def take(self, count: int) -> list[Rollout]:
        """The next rollouts, oldest first, fewer where fewer are left; they count as consumed."""
        arguments.whole("count", count, "how many rollouts, 0 or more", least=0)
        places = self._places[self.consumed : self.consumed + count]
        self.consumed += len(places)
        file = os.open(self.path, os.O_RDONLY)
        try:
            return [Rollout(version, _read(file, begin, end)) for begin, end, version in places]
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the log. The bank is not used afterwards."""
        self._disk.close(self._file)

    def state_dict(self) -> dict[str, Any]:
        """The cursor, for a checkpoint."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind what these parameters have learned from.

        ValueError where the log has fewer rollouts: it is another one.
        """
        if state["consumed"] > len(self):
            raise ValueError(
                f"the checkpoint has consumed {state['consumed']} rollouts, and {self.path} has "
                f"{len(self)}: give the log that belongs to this checkpoint"
            )
        self.consumed = state["consumed"]

    def _cut_off(self) -> None:
        """Remove what is behind the last whole record."""
        if self._end < self.path.stat().st_size:
            self._disk.truncate(self._file, self._end)
            self._disk.sync(self._file)


Place = tuple[int, int, int]
"""Where a payload begins and ends in the file, and its version."""


def _scan(path: Path) -> tuple[list[Place], int]:
    """The payloads of all whole records, and where the last record ends."""
    places: list[Place] = []
    end, size = 0, path.stat().st_size
    file = os.open(path, os.O_RDONLY)
    try:
        while end + _PAIR.size <= size:
            begin = end + _PAIR.size
            length, checksum = _PAIR.unpack(_read(file, end, begin))
            after = begin + length
            if not length or after > size:
                break
            body = _read(file, begin, after)
            if zlib.crc32(body) != checksum:
                if after < size:
                    raise ValueError(
                        f"{path}: the record at byte {end} is not what was appended, and there "
                        "are others behind it: restore the file, or cut it off there"
                    )
                break
            places += _places_in(body, begin)
            end = after
    finally:
        os.close(file)
    return places, end


def _places_in(body: bytes, begin: int) -> list[Place]:
    """The payloads of a record whose body begins at byte `begin` of the file."""
    places, at = [], 0
    while at < len(body):
        length, version = _PAIR.unpack_from(body, at)
        at += _PAIR.size
        places.append((begin + at, begin + at + length, version))
        at += length
    return places


def _read(file: int, begin: int, end: int) -> bytes:
    data = bytearray(end - begin)
    read_into(file, begin, memoryview(data))
    return bytes(data)
