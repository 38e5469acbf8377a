"""Records of ranks, on their way between hosts that may share no folder."""

from __future__ import annotations

import dataclasses
import json
import struct
import time
from pathlib import Path

from labkit.comm.board import Board
from labkit.comm.roll_call import Place, RollCall
from labkit.launch.door import Door, knock
from labkit.launch.rank_record import Record
from labkit.launch.stored_value import LEFT_BEHIND

_SIZES = struct.Struct("<QQ")
_LARGEST_NOTE_BYTES = 64 * 2**20
_KNOCK_S = 2.0
_GRACE_S = 8.0


def hand_over(record: Record, call: RollCall, board: Board, folder: Path) -> None:
    """Store the record on this host, and pin it to the board where rank 0 is on another."""
    record.write(folder)
    if call.places[record.rank].host_number != call.places[0].host_number:
        if len(record.value) > _LARGEST_NOTE_BYTES:
            record = dataclasses.replace(record, value=b"", value_kind=LEFT_BEHIND)
        board.post(f"record/{record.rank}", packed(record))


def collect(call: RollCall, board: Board, folder: Path) -> dict[int, Record]:
    """On rank 0's host: every rank's record that there is; those of other hosts are stored here."""
    found = {}
    for place in call.places:
        record = _find(place, board, folder)
        if record is not None:
            found[place.rank] = record
            if not (folder / f"rank-{place.rank}.json").exists():
                record.write(folder)
    return found


def wait_for(
    call: RollCall, board: Board, folder: Path, door: Door
) -> tuple[dict[int, Record], dict[int, str]]:
    """After a failure: the records that come within a grace, and who is gone, with the reason.

    door: our own, answered meanwhile.
    """
    found: dict[int, Record] = {}
    gone: dict[int, str] = {}
    deadline = time.monotonic() + _GRACE_S
    while True:
        door.answer()
        for place in call.places:
            if place.rank in found or place.rank in gone:
                continue
            record = _find(place, board, folder)
            if record is None and (silence := knock(place.address, place.door, _KNOCK_S)):
                record = _find(place, board, folder)  # it may have come and gone in between
                if record is None:
                    gone[place.rank] = silence
            if record is not None:
                found[place.rank] = record
        if len(found) + len(gone) == len(call.places) or time.monotonic() > deadline:
            return found, gone
        time.sleep(0.05)


def _find(place: Place, board: Board, folder: Path) -> Record | None:
    path = folder / f"rank-{place.rank}.json"
    if path.exists():
        return Record.read(path)
    note = board.read(f"record/{place.rank}")
    return None if note is None else unpacked(note)


def packed(record: Record) -> bytes:
    """A record as one note: no pickle, since it comes over a network."""
    head = json.dumps(record.as_json()).encode()
    return _SIZES.pack(len(head), len(record.value)) + head + record.value + record.log.encode()


def unpacked(note: bytes) -> Record:
    """The record in a note."""
    head, value = _SIZES.unpack_from(note)
    at = _SIZES.size
    return Record.from_json(
        json.loads(note[at : at + head]),
        note[at + head : at + head + value],
        note[at + head + value :],
    )
