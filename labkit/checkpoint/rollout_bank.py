"""Rollouts that are used exactly once: a log on disk, and a cursor in the checkpoint.

    log           | 0 | 1 | 2 | 3 | 4 | 5 | 6 | to            appended by one process
    checkpoint    step 40, consumed 3                         the parameters have used 0, 1 and 2
    after a kill  3, 4, 5, 6 are used; "to", a torn record, is cut off

Generated tokens are expensive. A training step that was lost must see its rollouts again, and one
that was saved must not. So the cursor belongs to the parameters: the bank is one of the `extra` of
a Checkpointer, and "consumed" is saved, loaded and lost with them. A cursor in a file of its own
loses rollouts if it is moved before the step is saved, and uses them twice if it is moved after.

Record: one for each `append`. A head has the length and the CRC-32 of the body, and a CRC-32 of
these two. The body has for each rollout its length, the version of the policy that generated it,
and the payload. Numbers are 4 bytes, little-endian. An append is on the disk when it returns. So
only the last record can be torn; a damaged one before others was changed later.

One process opens the log, and sends rollouts to the ranks. The other ranks give their Checkpointer
an `extra` with the same state_dict, since the cursor is one number for all.
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

_HEAD = struct.Struct("<III")
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

        ValueError if a record before others is damaged: bytes have changed.
        """
        self.path, self._disk = Path(path), disk or Disk()
        self.consumed = 0
        """Number of rollouts that the parameters have used."""
        self._disk.make_folder(self.path.parent)
        self._file = self._disk.open_to_append(self.path)
        self._payloads, self._end = _scan(self.path)
        self._cut_off()
        # A killed process may have written a whole record and not synced it.
        self._disk.sync(self._file)

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def num_left(self) -> int:
        """The number of rollouts that are not used yet."""
        return len(self) - self.consumed

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Append rollouts to the log. They are on the disk when it returns.

        OSError if they cannot be written: then the log is as before.
        """
        if not rollouts:
            return
        body = b"".join(_PAIR.pack(len(data), version) + data for version, data in rollouts)
        try:
            self._disk.write(self._file, _head_of(body) + body)
            self._disk.sync(self._file)
        except OSError:
            self._cut_off()
            raise
        self._payloads += _payloads_in(body, self._end + _HEAD.size)
        self._end += _HEAD.size + len(body)

    def take(self, count: int) -> list[Rollout]:
        """Return up to `count` rollouts, oldest first, and count them as consumed."""
        payloads = self._payloads[self.consumed : self.consumed + count]
        self.consumed += len(payloads)
        file = os.open(self.path, os.O_RDONLY)
        try:
            return [Rollout(version, _read(file, begin, end)) for begin, end, version in payloads]
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the log. The bank is not used afterwards."""
        self._disk.close(self._file)

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor, for a checkpoint."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the rollouts that the loaded parameters have used.

        ValueError if the log has fewer rollouts: it is of another job.
        """
        consumed = arguments.whole("consumed", state["consumed"], "0 or more rollouts", least=0)
        if consumed > len(self):
            raise ValueError(
                f"the checkpoint has consumed {consumed} rollouts, and {self.path} has "
                f"{len(self)}: give the log that belongs to this checkpoint"
            )
        self.consumed = consumed

    def _cut_off(self) -> None:
        """Cut the log after its last whole record."""
        if self._end < self.path.stat().st_size:
            self._disk.truncate(self._file, self._end)
            self._disk.sync(self._file)


PayloadRange = tuple[int, int, int]
"""Begin and end of a payload in the file, and its version."""


def _head_of(body: bytes) -> bytes:
    pair = _PAIR.pack(len(body), zlib.crc32(body))
    return pair + zlib.crc32(pair).to_bytes(4, "little")


def _scan(path: Path) -> tuple[list[PayloadRange], int]:
    """Return the payloads of all whole records, and where the last record ends."""
    data = path.read_bytes()
    payloads: list[PayloadRange] = []
    end = 0
    while (after := _end_of_record(data, end)) is not None:
        payloads += _payloads_in(data[end + _HEAD.size : after], end + _HEAD.size)
        end = after
    if any(_end_of_record(data, at) is not None for at in range(end + 1, len(data))):
        raise ValueError(
            f"{path}: the record at byte {end} is not what was appended, and there are others "
            "behind it: restore the file, or cut it off there"
        )
    return payloads, end


def _end_of_record(data: bytes, begin: int) -> int | None:
    """Return the end of the whole record that begins here; None if there is none."""
    head = data[begin : begin + _HEAD.size]
    if len(head) < _HEAD.size:
        return None
    length, checksum, of_head = _HEAD.unpack(head)
    after = begin + _HEAD.size + length
    is_whole = length and zlib.crc32(head[: _PAIR.size]) == of_head and after <= len(data)
    if not is_whole or zlib.crc32(data[begin + _HEAD.size : after]) != checksum:
        return None
    return after


def _payloads_in(body: bytes, begin: int) -> list[PayloadRange]:
    """Return the payloads of a record whose body begins at byte `begin` of the file."""
    payloads, at = [], 0
    while at < len(body):
        length, version = _PAIR.unpack_from(body, at)
        at += _PAIR.size
        payloads.append((begin + at, begin + at + length, version))
        at += length
    return payloads


def _read(file: int, begin: int, end: int) -> bytes:
    data = bytearray(end - begin)
    read_into(file, begin, memoryview(data))
    return bytes(data)
