"""What flight_recorder.py left of a rank, for those who read it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm.operation import Operation, Site

TITLE = "torch.distributed"
Meaning = tuple[str, str, tuple[int, ...]]
"""Kind, dtype, shape."""


@dataclass(frozen=True)
class HandedOver:
    """Collectives that a process handed to torch; none where all of them came from its Groups.

    `by_group`: per process group, by what a report calls it, a number for each collective in
    order: from 1, that of its meaning, and 0 where it is not known.
    """

    meanings: Sequence[Meaning] = ()
    by_group: Mapping[str, Sequence[int]] = field(default_factory=dict)
    num_lost: int = 0
    """Entries that torch had overwritten before they were read."""


@dataclass(frozen=True)
class Differing:
    """The first collective of a process group that two ranks do not mean alike."""

    group: str
    sequence: int
    ranks: tuple[int, int]
    meanings: tuple[Meaning, Meaning]

    def __str__(self) -> str:
        """`collective #3 of torch.distributed is ... on rank 0 and ... on rank 1`."""
        said = [
            f"{kind}{f' of {math.prod(shape)} {dtype}' * bool(dtype)} on rank {rank}"
            for rank, (kind, dtype, shape) in zip(self.ranks, self.meanings, strict=True)
        ]
        return f"collective #{self.sequence} of {self.group} is {said[0]}, and {said[1]}"


@dataclass(frozen=True)
class Recorded:
    """What torch has recorded of one rank.

    `operations`: those that torch itself issued and that are not complete; or, where all were asked
    for, everything that came to torch's process groups, a Group's operations too.
    `enqueued`: how many collectives of each process group were handed over, a Group's too.
    `is_idle`: the process used no CPU time while it was asked, so it waits or sleeps.
    `is_known`: whether the rank has answered; where not, it may have handed over anything.
    `has_handlers`: the program handles signals, and may do anything when one comes.
    `has_callbacks`: threads of torch's may run code of the program's yet, see callbacks.py.
    `awaited`: which of the operations it waits for, as the C++ call that it is in has begun it.
    """

    operations: Sequence[Operation] = ()
    enqueued: Mapping[str, int] = field(default_factory=dict)
    is_idle: bool = False
    is_known: bool = False
    awaited: int | None = None
    has_handlers: bool = False
    has_callbacks: bool = False

    @property
    def waits_in(self) -> Operation | None:
        """The operation that the rank blocks in; None where nobody can say."""
        if self.awaited is None or not self.is_idle:
            return None
        return self.operations[self.awaited]


def is_foreign(operation: Operation) -> bool:
    """Whether torch itself issued it, and no Group."""
    return operation.group_name.startswith(TITLE)


def differing(by_rank: Mapping[int, HandedOver]) -> Differing | None:
    """Where two ranks' n-th collectives of a process group are not the same."""
    first: dict[str, tuple[int, HandedOver]] = {}
    for rank, ours in by_rank.items():
        for group in ours.by_group:
            other, theirs = first.setdefault(group, (rank, ours))
            if sequence := _first_difference(theirs, ours, group):
                meanings = (_meaning(theirs, group, sequence), _meaning(ours, group, sequence))
                return Differing(group, sequence, (other, rank), meanings)
    return None


def _first_difference(one: HandedOver, two: HandedOver, group: str) -> int:
    """Its sequence number; 0 for none. What one of them does not know cannot differ."""
    if one.meanings == two.meanings and one.by_group[group] == two.by_group[group]:
        return 0
    number_of = {meaning: number for number, meaning in enumerate(one.meanings, start=1)}
    same = [0, *(number_of.get(meaning, -1) for meaning in two.meanings)]
    pairs = zip(one.by_group[group], two.by_group[group], strict=False)
    return next((n for n, (a, b) in enumerate(pairs, start=1) if a and b and a != same[b]), 0)


def _meaning(handed: HandedOver, group: str, sequence: int) -> Meaning:
    return handed.meanings[handed.by_group[group][sequence - 1] - 1]


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
        record["has_callbacks"],
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
