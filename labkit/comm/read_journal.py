"""Reading a journal back: the records of journal.py as operations and regions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.comm.operation import NETWORK, SHARED_MEMORY, Operation, Region, Site, Timeline
from labkit.comm.record import BLOCKING, FAILED, KINDS, NO_NAME, NO_PEER, RECORD, REDUCES, SHARED


def read_journal(path: Path, first: int = 0) -> Timeline:
    """The journal written at `path` so far, on the clock of time.monotonic().

    first: how many records to leave out, for a reader that has seen those.

    Safe at any time: while the rank writes, after it was killed, and before it began (empty).
    """
    timeline = Timeline()
    try:
        records = path.with_suffix(".journal").read_bytes()
        lines = path.with_suffix(".names").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return timeline
    names = [json.loads(line)[1] for line in lines]
    unseen = memoryview(records)[first * RECORD.size :]
    for index, fields in enumerate(RECORD.iter_unpack(unseen), start=first):
        if fields[0] == 0:
            break
        entry = parse(index, fields, names)
        if isinstance(entry, Region):
            timeline.regions.append(entry)
        else:
            timeline.operations.append(entry)
    return timeline


def parse(index: int, fields: tuple, names: Sequence[Any]) -> Operation | Region:
    """One record; `names`: those in the file of names, by number."""
    if KINDS[fields[0] - 1] == "region":
        return Region(names[fields[7]], fields[17], fields[19] or None)
    return _operation(index, fields, names)


def _operation(index: int, fields: tuple, names: Sequence[Any]) -> Operation:
    kind, flags, reduce, group, dtype, sequence, peer, shape, splits, site, origin = fields[:11]
    label, item, members, payload_bytes, sent_bytes, received_bytes = fields[11:17]
    posted_s, waited_s, done_s = fields[17:]
    group_name, ranks = names[group]
    return Operation(
        index=index,
        kind=KINDS[kind - 1],
        blocking=bool(flags & BLOCKING),
        group=tuple(ranks),
        group_name=group_name,
        sequence=sequence,
        reduce=REDUCES[reduce],
        peer=None if peer == NO_PEER else peer,
        dtype=names[dtype].removeprefix("torch."),
        shape=tuple(names[shape]),
        payload_bytes=payload_bytes,
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        site=Site(*names[site]),
        origin=Site(*names[origin][0]),
        posted_s=posted_s,
        waited_s=waited_s or None,
        done_s=done_s or None,
        failed=bool(flags & FAILED),
        splits=None if splits == NO_NAME else _splits(names[splits]),
        callers=tuple(Site(*each) for each in names[origin][1:]),
        label=None if label == NO_NAME else names[label],
        item=None if item == NO_NAME else names[item],
        members=None if members == NO_NAME else tuple(names[members]),
        medium=SHARED_MEMORY if flags & SHARED else NETWORK,
    )


def _splits(sent_and_received: list[list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sent, received = sent_and_received
    return tuple(sent), tuple(received)
