"""What flight_recorder.py left of a rank, for those who read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm.operation import Operation, Site

TITLE = "torch.distributed"
Meaning = tuple[str, str, tuple[int, ...]]
"""Kind, dtype, shape."""


@dataclass(frozen=True)
class Recorded:
    """What torch has recorded of one rank.

    `operations`: those that torch itself issued and that are not complete; or, where all were asked
    for, everything that came to torch's process groups, a Group's operations too.
    `enqueued`: how many collectives of each process group were handed over, a Group's too.
    `is_idle`: the process used no CPU time while it was asked, so it waits or sleeps.
    `is_known`: whether the rank has answered; where not, it may have handed over anything.
    `has_handlers`: the program handles signals, and may do anything when one comes.
    `awaited`: which of the operations it waits for, as the C++ call that it is in has begun it.
    """

    operations: Sequence[Operation] = ()
    enqueued: Mapping[str, int] = field(default_factory=dict)
    is_idle: bool = False
    is_known: bool = False
    awaited: int | None = None
    has_handlers: bool = False

    @property
    def waits_in(self) -> Operation | None:
        """The operation that the rank blocks in; None where nobody can say."""
        if self.awaited is None or not self.is_idle:
            return None
        return self.operations[self.awaited]


def is_foreign(operation: Operation) -> bool:
    """Whether torch itself issued it, and no Group."""
    return operation.group_name.startswith(TITLE)


def read(path: Path) -> Recorded:
    """What `write` left; nothing where it left nothing."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return Recorded()
    operations = [_operation(index, *each) for index, each in enumerate(record["operations"])]
    return Recorded(
        operations,
        record["enqueued"],
        record["is_idle"],
        True,
        record["awaited"],
        record["has_handlers"],
    )


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
