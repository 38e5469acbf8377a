"""In what two ranks' operations differ that should match, and how a report says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from labkit.comm.operation import P2P_KINDS, Operation, Site
from labkit.comm.words import Place, named, places, ranks_named, shortened, verb


class Aspect(Enum):
    """In what operations that should match can differ."""

    KIND = "operation"
    MEDIUM = "medium"
    ROOT = "root"
    REDUCE = "reduce op"
    LABEL = "label"
    DTYPE = "dtype"
    SHAPE = "shape"
    SPLITS = "rows"
    ORDER = "order of calls"


# What must be equal on all ranks, in the order in which it is worth telling.
EQUAL: dict[Aspect, Callable[[Operation], Any]] = {
    Aspect.KIND: lambda operation: operation.kind,
    Aspect.MEDIUM: lambda operation: operation.medium,
    Aspect.ROOT: lambda operation: operation.peer,
    Aspect.REDUCE: lambda operation: operation.reduce,
    Aspect.LABEL: lambda operation: operation.label,
    Aspect.DTYPE: lambda operation: operation.dtype,
    Aspect.SHAPE: lambda operation: equal_shape(operation.kind, operation.shape),
}
_SAID = {
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
    "calls in one order on every rank, such as that of sorted names. Where you gave none, it is a "
    "collective's of labkit.collectives: its name, dtype, shape and root.",
    Aspect.DTYPE: "Both sides must pass the same dtype: convert before the call.",
    Aspect.SHAPE: "Both sides must pass the same shape: pad to the longest, or exchange the sizes "
    "first and use an operation that takes uneven parts (all_to_all with splits).",
    Aspect.SPLITS: "What one rank sends another must be what that one expects: exchange the "
    "numbers of rows first, with an all_to_all of the send_splits.",
    Aspect.ORDER: "Different tensors meet in one call. Make the calls in one order on every rank, "
    "such as that of sorted names. If they are meant to meet, put both under one label on every "
    "rank: `with world.label('turn'):`.",
}


@dataclass(frozen=True)
class Difference:
    """Operations that should match, and in what they do not. `operations` is by global rank."""

    aspect: Aspect
    operations: Mapping[int, Sequence[Operation]]

    @property
    def odd_ranks(self) -> list[int]:
        """The ranks in the minority; all of them where there is none."""
        sides = self._sides()
        fewest = min(len(ranks) for ranks in sides.values())
        if sum(len(ranks) == fewest for ranks in sides.values()) == len(sides):
            return sorted(self.operations)
        return sorted(r for ranks in sides.values() if len(ranks) == fewest for r in ranks)

    def _sides(self) -> dict[Any, list[int]]:
        """Ranks by what they mean."""
        meaning = EQUAL.get(self.aspect, lambda operation: operation.origin.said)
        sides: dict[Any, list[int]] = {}
        for rank, (operation, *_) in sorted(self.operations.items()):
            sides.setdefault(meaning(operation), []).append(rank)
        return sides

    def text(self, place: Place) -> str:
        """One sentence that names ranks, operations and lines."""
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
                one, _, rest = _SAID[self.aspect].partition(" ")
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
            f"as {named(x)} rank {a} calls {shortened(here.said)} ({place(here)}) and "
            f"rank {b} {shortened(there.said)} ({place(there)})"
            for x, y in zip(theirs, others, strict=True)
            for here, there in [apart([x, y])]
        ]
        return f"ranks {a} and {b} make the same calls in another order: " + "; ".join(pairs)


def apart(operations: Sequence[Operation]) -> list[Site]:
    """Their lines, the innermost that differ: of `sync(a)` and `sync(b)`, not the one in `sync`."""
    levels = list(zip(*((each.origin, *each.callers) for each in operations), strict=False))
    differing = [sites for sites in levels if len({site.said for site in sites}) > 1]
    return list((differing or levels)[0])


def equal_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The part of a shape that all ranks must share: of all_to_all's rows only what a row is."""
    return shape[1:] if kind == "all_to_all" else shape
