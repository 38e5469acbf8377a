"""Records of ranks, on their way between hosts that may share no folder."""

from __future__ import annotations

import dataclasses
import json
import struct
import time
import zlib
from pathlib import Path

from labkit.comm import Timeline
from labkit.comm.hosts.board import Board
from labkit.comm.hosts.roll_call import Place, RollCall
from labkit.launch.hosts.door import Door, Knocks
from labkit.launch.saved.rank_record import Record
from labkit.launch.saved.stored_value import LEFT_BEHIND

_SIZES = struct.Struct("<QQQ")
LARGEST_NOTE_BYTES = 64 * 2**20
_KNOCK_S = 2.0
_GRACE_S = 8.0


def hand_over(record: Record, call: RollCall, board: Board, folder: Path) -> bool:
    """Store the record on this host, and pin it to the board where rank 0 is on another.

    False where it is not known to be on the board.
    """
    record.write(folder)
    if call.places[record.rank].host_number == call.places[0].host_number:
        return True
    return board.post(f"record/{record.rank}", bounded(record, LARGEST_NOTE_BYTES))


def bounded(record: Record, most_bytes: int) -> bytes:
    """The record as a note of `most_bytes` at most; the value stays behind first."""
    note = packed(record)
    if len(note) > most_bytes:
        record = dataclasses.replace(record, value=b"", value_kind=LEFT_BEHIND)
        note = packed(record)
    if len(note) > most_bytes:
        timeline = Timeline(start_s=record.timeline.start_s, end_s=record.timeline.end_s)
        note = packed(dataclasses.replace(record, timeline=timeline, log="", is_cut=True))
    return note


def collect(call: RollCall, board: Board, folder: Path) -> dict[int, Record]:
    """On rank 0's host: every rank's record that there is; those of other hosts are stored here."""
    found = {}
    for place in call.places:
        record = _find(place, board, folder)
        if record is not None:
            found[place.rank] = record
            if not _path(place, folder).exists():
                record.write(folder)
    return found


def wait_for(
    call: RollCall, board: Board, folder: Path, door: Door
) -> tuple[dict[int, Record], dict[int, str]]:
    """After a failure: the records that come, and who is gone, with the reason.

    After 8 s nothing more is asked: what is asked last takes 2 s where a host is silent. door: our
    own, answered meanwhile.
    """
    found: dict[int, Record] = {}
    gone: dict[int, str] = {}
    missing = list(call.places)
    knocks, deadline = Knocks(_KNOCK_S), time.monotonic() + _GRACE_S
    while missing and time.monotonic() < deadline:
        for place in missing:
            if time.monotonic() >= deadline:  # a board or a host that is gone takes seconds
                break
            door.answer()
            record = _find(place, board, folder)
            if record is None and (silence := knocks.at(place)):
                record = _find(place, board, folder)  # it may have come and gone in between
                if record is None:
                    gone[place.rank] = silence
            if record is not None:
                found[place.rank] = record
        missing = [place for place in missing if place.rank not in {*found, *gone}]
        time.sleep(0.05 if missing else 0)
    for place in missing:  # of this host: they may have come while another host was waited for
        if (path := _path(place, folder)).exists():
            found[place.rank] = Record.read(path)
    return found, gone


def _find(place: Place, board: Board, folder: Path) -> Record | None:
    path = _path(place, folder)
    if path.exists():
        return Record.read(path)
    note = board.read(f"record/{place.rank}")
    return None if note is None else unpacked(note)


def _path(place: Place, folder: Path) -> Path:
    return folder / f"rank-{place.rank}.json"


def packed(record: Record) -> bytes:
    """A record as one note: no pickle, since it comes over a network."""
    head = json.dumps(record.as_json()).encode()
    whole = head + record.value + record.log.encode(errors="replace")
    return _SIZES.pack(len(head), len(record.value), len(whole)) + zlib.compress(whole, 1)


def unpacked(note: bytes) -> Record:
    """The record in a note. ValueError and its like for anything else."""
    head, value, size = _SIZES.unpack_from(note)
    whole = zlib.decompressobj().decompress(note[_SIZES.size :], size)  # no more than it says
    return Record.from_json(
        json.loads(whole[:head]), whole[head : head + value], whole[head + value :]
    )
