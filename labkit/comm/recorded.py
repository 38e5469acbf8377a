"""What flight_recorder.py left of a rank, for those who read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm.operation import Operation, Site

TITLE = "torch.distributed"
Entry = tuple[str, int, str, str, tuple[int, ...]]
"""Process group, sequence number, kind, dtype, shape."""


@dataclass(frozen=True)
class Recorded:
    """What torch has recorded of one rank.

    `operations`: those that torch itself issued and that are not complete; or, where all were asked
    for, everything that came to torch's process groups, a Group's operations too.
    `enqueued`: how many collectives of each process group were handed over, a Group's too.
    `is_idle`: the process used no CPU time while it was asked, so it waits or sleeps.
    `is_known`: whether the rank has answered; where not, it may have handed over anything.
    """

    operations: Sequence[Operation] = ()
    enqueued: Mapping[str, int] = field(default_factory=dict)
    is_idle: bool = False
    is_known: bool = False


def is_foreign(operation: Operation) -> bool:
    """Whether torch itself issued it, and no Group."""
    return operation.group_name.startswith(TITLE)


def differ(entries_by_rank: Sequence[Sequence[Entry]]) -> bool:
    """Whether two ranks' n-th collectives of a process group are not the same."""
    seen: dict[tuple[str, int], Entry] = {}
    return any(
        seen.setdefault(entry[:2], entry) != entry
        for entries in entries_by_rank
        for entry in entries
    )


def read(path: Path) -> Recorded:
    """What `write` left; nothing where it left nothing."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return Recorded()
    operations = [_operation(index, *each) for index, each in enumerate(record["operations"])]
    return Recorded(operations, record["enqueued"], record["is_idle"], is_known=True)


def _operation(
    index: int,
    group: str,
    members: list[int],
    sequence: int,
    kind: str,
    dtype: str,
    shape: list[int],
    site: list[Any],
    posted_s: float,
    is_done: bool,
    is_of_a_group: bool,
) -> Operation:
    place = Site(*site)
    return Operation(
        index=index,
        kind=kind,
        blocking=True,
        group=tuple(members),
        group_name=group,
        sequence=sequence,
        reduce=None,
        peer=None,
        dtype=dtype,
        shape=tuple(shape),
        payload_bytes=0,
        sent_bytes=0,
        received_bytes=0,
        site=place,
        origin=place,
        posted_s=posted_s,
        waited_s=None if is_of_a_group else posted_s,  # whether a Group waits, its journal knows
        done_s=posted_s if is_done else None,
        failed=False,
    )
