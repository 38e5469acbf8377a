"""Records of ranks, on their way between hosts that may share no folder."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import time
import zlib
from pathlib import Path

from labkit.comm import Timeline
from labkit.hosts import typed_json
from labkit.hosts.board import Board, NoAnswer
from labkit.hosts.hosted_rank import LivenessPort, LivenessProbes
from labkit.hosts.rank_record import LEFT_BEHIND, Record
from labkit.hosts.rendezvous import Place, Rendezvous

_SIZES = struct.Struct("<QQQ")
LARGEST_NOTE_BYTES = 64 * 2**20
_PROBE_S = 2.0
_GRACE_S = 8.0
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.5, 30.0  # with the board, for one record


def send_record(record: Record, rendezvous: Rendezvous, board: Board, folder: Path) -> bool:
    """Store the record on this host, and pin it to the board where rank 0 is on another.

    False where it is not known to be on the board.
    """
    record.write(folder)
    if rendezvous.places[record.rank].host_number == rendezvous.places[0].host_number:
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
        record = dataclasses.replace(record, timeline=timeline)
        note = packed(dataclasses.replace(record, log="", is_cut=True))
    return note


def collect(
    rendezvous: Rendezvous, board: Board, folder: Path, within_s: float = math.inf
) -> tuple[dict[int, Record], list[int]]:
    """On rank 0's host: every rank's record that there is; those of other hosts are stored here.

    Beside them the ranks of which the board has not said, within `within_s`, whether there is one.
    """
    found, unknown = {}, []
    deadline_s = time.monotonic() + within_s
    for place in rendezvous.places:
        try:
            record = _find(place, board, folder, deadline_s)
        except NoAnswer:
            unknown.append(place.rank)
            continue
        if record is not None:
            found[place.rank] = record
            if not _path(place, folder).exists():
                record.write(folder)
    return found, unknown


def wait_for(
    rendezvous: Rendezvous, board: Board, folder: Path, liveness_port: LivenessPort
) -> tuple[dict[int, Record], dict[int, str]]:
    """After a failure: the records that come, and who is gone, with the reason.

    After 8 s nothing more is asked; a silent host takes 2 s more, and a board whose answers are
    late a few. liveness_port: our own, answered meanwhile.
    """
    found: dict[int, Record] = {}
    gone: dict[int, str] = {}
    missing = list(rendezvous.places)
    probes, deadline = LivenessProbes(_PROBE_S), time.monotonic() + _GRACE_S
    while missing and time.monotonic() < deadline:
        for place in missing:
            if time.monotonic() >= deadline:  # a board or a host that is gone takes seconds
                break
            liveness_port.answer()
            record = _find_in_time(place, board, folder, deadline)
            if record is None and (silence := probes.at(place)):
                # It may have come and gone in between.
                record = _find_in_time(place, board, folder, deadline)
                if record is None:
                    gone[place.rank] = silence
            if record is not None:
                found[place.rank] = record
        missing = [place for place in missing if place.rank not in {*found, *gone}]
        time.sleep(0.05 if missing else 0)
    for place in missing:  # this host's may have arrived while another host was waited for
        if (path := _path(place, folder)).exists():
            found[place.rank] = Record.read(path)
    return found, gone


def _find_in_time(place: Place, board: Board, folder: Path, deadline_s: float) -> Record | None:
    """The record of a rank; None where there is none, and where nobody has said so in time."""
    try:
        return _find(place, board, folder, deadline_s)
    except NoAnswer:
        return None


def _find(place: Place, board: Board, folder: Path, deadline_s: float) -> Record | None:
    """Raises NoAnswer."""
    path = _path(place, folder)
    if path.exists():
        return Record.read(path)
    left_s = max(deadline_s - time.monotonic(), _LEAST_PATIENCE_S)
    return board.read(f"record/{place.rank}", unpacked, min(left_s, _MOST_PATIENCE_S))


def _path(place: Place, folder: Path) -> Path:
    return folder / f"rank-{place.rank}.json"


def packed(record: Record) -> bytes:
    """A record as one note: no pickle, since it comes over a network."""
    head = json.dumps(record.as_json()).encode()
    whole = head + record.value + record.log.encode(errors="replace")
    return _SIZES.pack(len(head), len(record.value), len(whole)) + compressed(whole)


def unpacked(note: bytes) -> Record:
    """The record in a note. ValueError, with the reason, for anything else."""
    try:
        head, value, size = _SIZES.unpack_from(note)
    except struct.error as error:
        raise ValueError(f"it is no note of labkit's: {error}") from None
    whole = decompressed(note[_SIZES.size :], most_bytes=size)
    return Record.from_json(
        typed_json.parsed(whole[:head]), whole[head : head + value], whole[head + value :]
    )


def compressed(whole: bytes) -> bytes:
    """A note as it travels; with its checksum, half of one is not taken for a whole one."""
    return zlib.compress(whole, 1)


def decompressed(note: bytes, most_bytes: int) -> bytes:
    """Return the decompressed bytes, `most_bytes` at most. ValueError says why not."""
    unpacking = zlib.decompressobj()
    try:
        # The end of the note comes behind the last byte: with room for one more it is reached.
        whole = unpacking.decompress(note, most_bytes + 1)
    except (zlib.error, OverflowError) as error:
        raise ValueError(f"it is no note of labkit's: {error}") from None
    if not unpacking.eof:
        raise ValueError("it is no note of labkit's: it is cut short, or too long")
    return whole
