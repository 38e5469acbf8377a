"""Find operations of ranks that should match and do not, and describe how they differ.

A backend matches collectives of a group by their order alone, and messages by sender, receiver and
order. Where ranks mean different operations, gloo adds up what it gets: another shape, another
reduce op or swapped calls give wrong numbers in silence. Titanium, a parallel Java, called the rule
that prevents it textual alignment: the same calls, in the same order (Kamil and Yelick,
"Concurrency analysis for parallel programs with textually aligned barriers", LCPC 2005).

mismatch_detector.py applies these rules on each rank as operations happen. The doctor applies them
to the journals afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from labkit.comm.operation import (
    P2P_KINDS,
    Operation,
    Place,
    Site,
    Timeline,
    named,
    places,
    ranks_named,
    shortened,
    verb,
)
from labkit.comm.recorder import is_foreign


class Aspect(Enum):
    """A property in which operations that should match can differ."""

    KIND = "operation"
    MEDIUM = "medium"
    ROOT = "root"
    REDUCE = "reduce op"
    LABEL = "label"
    DTYPE = "dtype"
    SHAPE = "shape"
    SPLITS = "rows"
    ORDER = "order of calls"


# Must be equal on all ranks; reported in this order.
EQUAL: dict[Aspect, Callable[[Operation], Any]] = {
    Aspect.KIND: lambda operation: operation.kind,
    Aspect.MEDIUM: lambda operation: operation.medium,
    Aspect.ROOT: lambda operation: operation.peer,
    Aspect.REDUCE: lambda operation: operation.reduce,
    Aspect.LABEL: lambda operation: operation.label,
    Aspect.DTYPE: lambda operation: operation.dtype,
    Aspect.SHAPE: lambda operation: equal_shape(operation.kind, operation.shape),
}
_PHRASES = {
    Aspect.MEDIUM: "uses {}",
    Aspect.ROOT: "names rank {} as the root",
    Aspect.REDUCE: "reduces by {}",
    Aspect.LABEL: "gives label {!r}",
    Aspect.DTYPE: "passes {}",
    Aspect.SHAPE: "passes shape {}",
}
ADVICE = {
    Aspect.KIND: "Collectives of a group are matched by their order alone: every member must make "
    "the same calls. Look for a branch or a loop that depends on the rank.",
    Aspect.MEDIUM: "A collective goes one way for all members: over the network, as those of a "
    "Group do, or through shared memory. Call the same function on every rank.",
    Aspect.ROOT: "All members must name the same root, as a number in the group.",
    Aspect.REDUCE: "All members must reduce the same way.",
    Aspect.LABEL: "A label says what an operation is for: both sides must give the same. Make the "
    "calls in one order on every rank, such as that of sorted names. If you gave none, "
    "labkit.collectives did: the collective's name, dtype, shape and root.",
    Aspect.DTYPE: "Both sides must pass the same dtype: convert before the call.",
    Aspect.SHAPE: "Both sides must pass the same shape: pad to the longest, or exchange the sizes "
    "first and use an operation that takes uneven parts (all_to_all with splits).",
    Aspect.SPLITS: "Two ranks must agree on the rows that one sends the other: exchange the "
    "numbers of rows first, with an all_to_all of the send_splits.",
    Aspect.ORDER: "Different tensors meet in one call. Make the calls in one order on every rank, "
    "such as that of sorted names. If they are meant to meet, put both under one label on every "
    "rank: `with world.label('turn'):`.",
}


@dataclass(frozen=True)
class Difference:
    """Operations, by global rank, that should match, and the aspect in which they do not."""

    aspect: Aspect
    operations: Mapping[int, Sequence[Operation]]

    @property
    def odd_ranks(self) -> list[int]:
        """The ranks in the minority; all ranks where there is no minority."""
        sides = self._sides()
        fewest = min(len(ranks) for ranks in sides.values())
        if sum(len(ranks) == fewest for ranks in sides.values()) == len(sides):
            return sorted(self.operations)
        return sorted(r for ranks in sides.values() if len(ranks) == fewest for r in ranks)

    def _sides(self) -> dict[Any, list[int]]:
        """Group the ranks by their value of the aspect."""
        meaning = EQUAL.get(self.aspect, lambda operation: operation.origin.description)
        sides: dict[Any, list[int]] = {}
        for rank, (operation, *_) in sorted(self.operations.items()):
            sides.setdefault(meaning(operation), []).append(rank)
        return sides

    def text(self, place: Place) -> str:
        """Return one sentence that names ranks, operations and lines."""
        first = next(iter(self.operations.values()))[0]
        if self.aspect is Aspect.ORDER:
            return self._order_text(place)
        if first.kind in P2P_KINDS:
            return self._message_text(place)
        if self.aspect is Aspect.SPLITS:
            return self._splits_text(place)
        parts = []
        for value, ranks in sorted(self._sides().items(), key=lambda side: len(side[1])):
            operations = [self.operations[rank][0] for rank in ranks]
            if self.aspect is Aspect.KIND:
                said = f"{verb(ranks, 'calls')} {named(operations[0])}"
            else:
                one, _, rest = _PHRASES[self.aspect].partition(" ")
                said = f"{verb(ranks, one)} {rest.format(value)}"
            parts.append(f"{ranks_named(ranks)} {said} ({places(operations, place)})")
        lead = "" if self.aspect is Aspect.KIND else f"in {named(first)}, "
        return lead + ", ".join(parts[:-1]) + f", and {parts[-1]}"

    def _message_text(self, place: Place) -> str:
        (a, (one, *_)), (_, (other, *_)) = self.operations.items()
        send, recv, source = (one, other, a) if one.kind == "send" else (other, one, one.peer)
        value = EQUAL[self.aspect]
        return (
            f"{named(send)} from rank {source} ({place(send.origin)}) has {self.aspect.value} "
            f"{value(send)}, but the buffer that rank {send.peer} receives it in "
            f"({place(recv.origin)}) has {self.aspect.value} {value(recv)}"
        )

    def _splits_text(self, place: Place) -> str:
        (sender, (out, *_)), (receiver, (into, *_)) = self.operations.items()
        assert out.splits is not None and into.splits is not None
        rows = out.splits[0][out.group.index(receiver)]
        expected = into.splits[1][into.group.index(sender)]
        return (
            f"in {named(out)}, rank {sender} sends rank {receiver} {rows} rows "
            f"({place(out.origin)}), and rank {receiver} expects {expected} from it "
            f"({place(into.origin)})"
        )

    def _order_text(self, place: Place) -> str:
        (a, theirs), (b, others) = self.operations.items()
        pairs = [
            f"as {named(x)} rank {a} calls {shortened(here.description)} ({place(here)}) and "
            f"rank {b} {shortened(there.description)} ({place(there)})"
            for x, y in zip(theirs, others, strict=True)
            for here, there in [innermost_differing_sites([x, y])]
        ]
        return f"ranks {a} and {b} make the same calls in another order: " + "; ".join(pairs)


class OperationMismatch(RuntimeError):
    """A rank found that another one means a different operation than itself."""


# These move no tensor of the reader's: barriers on different lines may meet.
WITHOUT_DATA = ("barrier", "split", "share_memory", "close")
ByRank = dict[int, Operation]


def collective_difference(operations: Mapping[int, Operation]) -> Difference | None:
    """Return the difference between entries of one collective, by rank, or None if they match."""
    for aspect, value in EQUAL.items():
        if len({value(operation) for operation in operations.values()}) > 1:
            return Difference(aspect, {rank: [each] for rank, each in operations.items()})
    for (rank, operation), (other, its) in itertools.permutations(operations.items(), 2):
        # The backend checks the rows that a rank keeps for itself.
        if operation.splits is None or its.splits is None:
            continue
        sent = operation.splits[0][its.group.index(other)]
        if sent != its.splits[1][operation.group.index(rank)]:
            return Difference(Aspect.SPLITS, {rank: [operation], other: [its]})
    return None


def message_difference(
    sender: int, send: Operation, receiver: int, recv: Operation
) -> Difference | None:
    """Return the difference between a message and the buffer for it, or None."""
    for aspect in (Aspect.LABEL, Aspect.DTYPE, Aspect.SHAPE):
        if EQUAL[aspect](send) != EQUAL[aspect](recv):
            return Difference(aspect, {sender: [send], receiver: [recv]})
    return None


def order_difference(by_rank: Mapping[int, Sequence[Operation]]) -> Difference | None:
    """Return two calls that two ranks make in swapped order, or None.

    by_rank: two successive collectives of a group, as two ranks called them.
    """
    (one, two), (its_one, its_two) = (list(map(_call, calls)) for calls in by_rank.values())
    is_swap = one != two and (one, two) == (its_two, its_one) and None not in (one, two)
    return Difference(Aspect.ORDER, by_rank) if is_swap else None


def _call(operation: Operation) -> tuple[object, ...] | None:
    """Return what must come in one order on all ranks, or None where the order does not count."""
    if is_foreign(operation) or not has_order(operation):  # torch's record has no labels or roots
        return None
    return (*(value(operation) for value in EQUAL.values()), operation.call_chain)


def has_order(operation: Operation) -> bool:
    """Return whether the order of calling lines counts: not for barriers, nor under a label."""
    return operation.label is None and operation.kind not in WITHOUT_DATA


def first_difference(timelines: Sequence[Timeline]) -> Difference | None:
    """Return the first disagreement that the journals show, or None."""
    met = collectives(timelines)
    return (
        _first(map(collective_difference, met.values()))
        or _first(message_difference(*ends) for ends in _messages(timelines))
        or _first(map(order_difference, _in_a_row(met)))
    )


def collectives(timelines: Sequence[Timeline]) -> dict[tuple[str, int], ByRank]:
    """Return collectives by the group's name and their number in it."""
    met: dict[tuple[str, int], ByRank] = {}
    for rank, timeline in enumerate(timelines):
        for each in timeline.operations:
            if each.is_collective:
                met.setdefault((each.group_name, each.sequence), {})[rank] = each
    return met


def _in_a_row(met: Mapping[tuple[str, int], ByRank]) -> Iterator[dict[int, list[Operation]]]:
    """Yield two successive collectives of a group, of two ranks that call them differently."""
    for (group, sequence), by_rank in met.items():
        before = met.get((group, sequence - 1), {})
        if len({each.call_chain for each in by_rank.values()}) == 1:
            continue
        shared = sorted(by_rank.keys() & before.keys(), reverse=True)
        firsts = {(before[rank].call_chain, by_rank[rank].call_chain): rank for rank in shared}
        for ranks in itertools.combinations(sorted(firsts.values()), 2):
            yield {rank: [before[rank], by_rank[rank]] for rank in ranks}


def _messages(timelines: Sequence[Timeline]) -> Iterator[tuple[int, Operation, int, Operation]]:
    """Yield (sender, send, receiver, recv) of each message that has both ends."""
    ends: dict[tuple[str, int, int, int], dict[str, Operation]] = {}
    for rank, timeline in enumerate(timelines):
        for each in timeline.operations:
            if each.kind in P2P_KINDS:
                assert each.peer is not None
                pair = (rank, each.peer) if each.kind == "send" else (each.peer, rank)
                ends.setdefault((each.group_name, *pair, each.sequence), {})[each.kind] = each
    for (_, source, target, _), both in ends.items():
        if len(both) == 2:
            yield source, both["send"], target, both["recv"]


def _first(differences: Iterable[Difference | None]) -> Difference | None:
    return next((each for each in differences if each is not None), None)


def innermost_differing_sites(operations: Sequence[Operation]) -> list[Site]:
    """Return the innermost lines that differ: `sync(a)` and `sync(b)`, not the line in `sync`."""
    levels = list(zip(*((each.origin, *each.callers) for each in operations), strict=False))
    differing = [sites for sites in levels if len({site.description for site in sites}) > 1]
    return list((differing or levels)[0])


def equal_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the part of a shape that all ranks must share: for all_to_all, one row's."""
    return shape[1:] if kind == "all_to_all" else shape
