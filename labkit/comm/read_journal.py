"""Reading a journal back: the records of journal.py as operations and regions."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from labkit.comm.operation import NETWORK, SHARED_MEMORY, Operation, Region, Site, Timeline
from labkit.comm.record import (
    BLOCKING,
    FAILED,
    IN_BACKGROUND,
    KINDS,
    NO_NAME,
    NO_PEER,
    RECORD,
    REDUCES,
    SHARED,
)

_RECORDS_AT_ONCE = 1024


def read_journal(path: Path, first: int = 0) -> Timeline:
    """The journal written at `path` so far, on the clock of time.monotonic().

    first: how many records to leave out, for a reader that has seen those.

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


def records_of(file: BinaryIO, first: int) -> Iterator[tuple[Any, ...]]:
    """The records from number `first` on, up to the unused part, which may be half of the file."""
    file.seek(first * RECORD.size)
    while data := file.read(_RECORDS_AT_ONCE * RECORD.size):
        for fields in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
            if fields[0] == 0:
                return
            yield fields


def decoded(lines: Iterable[bytes]) -> list[Any]:
    """What lines of the file of names say, each decoded once: many records refer to one name."""
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
    """One record; `names`: those in the file of names, decoded, by number."""
    if KINDS[fields[0] - 1] == "region":
        return Region(names[fields[7]], fields[15], fields[17] or None)
    return _operation(index, fields, names)


def _operation(index: int, fields: tuple, names: Sequence[Any]) -> Operation:
    kind, flags, reduce, group, dtype, sequence, peer, shape, splits, site, origin = fields[:11]
    label, payload_bytes, sent_bytes, received_bytes = fields[11:15]
    posted_s, waited_s, done_s = fields[15:]
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
    )
