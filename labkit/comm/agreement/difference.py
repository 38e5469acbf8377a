"""In what two ranks' operations differ that should match, and how a report says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from labkit.comm.agreement.call_text import shortened
from labkit.comm.agreement.items import texts_differ
from labkit.comm.operation import P2P_KINDS, Operation
from labkit.comm.words import Place, named, places, ranks_named, verb


class Aspect(Enum):
    """In what operations that should match can differ."""

    KIND = "operation"
    MEDIUM = "medium"
    ROOT = "root"
    REDUCE = "reduce op"
    LABEL = "label"
    MEMBERS = "members"
    DTYPE = "dtype"
    SHAPE = "shape"
    SPLITS = "rows"
    GROUPS = "groups"
    QUEUE = "place in the process group"
    ORDER = "order of calls"


# What must be equal on all ranks, in the order in which it is worth telling.
EQUAL: dict[Aspect, Callable[[Operation], Any]] = {
    Aspect.KIND: lambda operation: operation.kind,
    Aspect.MEDIUM: lambda operation: operation.medium,
    Aspect.ROOT: lambda operation: operation.peer,
    Aspect.REDUCE: lambda operation: operation.reduce,
    Aspect.LABEL: lambda operation: operation.label,
    Aspect.MEMBERS: lambda operation: operation.members,
    Aspect.DTYPE: lambda operation: operation.dtype,
    Aspect.SHAPE: lambda operation: equal_shape(operation.kind, operation.shape),
}
# What must be equal where it is known.
QUEUED: Callable[[Operation], Any] = attrgetter("queued")
_SAID = {
    Aspect.QUEUE: "calls it with {} collectives of the process group before it",
    Aspect.MEDIUM: "uses {}",
    Aspect.ROOT: "names rank {} as the root",
    Aspect.REDUCE: "reduces by {}",
    Aspect.LABEL: "gives label {!r}",
    Aspect.MEMBERS: "makes a group of ranks {}",
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
    "calls in one order on every rank, such as that of sorted names.",
    Aspect.MEMBERS: "torch.distributed tells groups apart by the order in which they are made. "
    "Make the same ones in the same order on every rank, also those that a rank is not in.",
    Aspect.GROUPS: "Groups of the same ranks are told apart by the order in which they are made, "
    "and not by the variable that holds them. Make and call them in one order on every rank.",
    Aspect.DTYPE: "Both sides must pass the same dtype: convert before the call.",
    Aspect.SHAPE: "Both sides must pass the same shape: pad to the longest, or exchange the sizes "
    "first and use an operation that takes uneven parts (all_to_all with splits).",
    Aspect.SPLITS: "What one rank sends another must be what that one expects: exchange the "
    "numbers of rows first, with an all_to_all of the send_splits.",
    Aspect.QUEUE: "A Group, the functions of torch.distributed and torch's own DDP hand their "
    "collectives to one process group, which matches them by order alone. Make them in one order "
    "on every rank.",
    Aspect.ORDER: "Different tensors meet in one call. Make the calls in one order on every rank. "
    "If they are in order, and ranks mean to pass different tensors here, choose the tensor first "
    "and write one call for all: `x = weights if world.rank == 0 else zeros`, then "
    "`world.all_reduce(x)`. If the tensors are elements of a loop that go by different names, put "
    "the call under one label on every rank: `with world.label('turn'):`.",
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
        values = {**EQUAL, Aspect.QUEUE: QUEUED}
        meaning = values.get(self.aspect, lambda operation: operation.origin.said)
        sides: dict[Any, list[int]] = {}
        for rank, (operation, *_) in sorted(self.operations.items()):
            sides.setdefault(meaning(operation), []).append(rank)
        return sides

    def text(self, place: Place) -> str:
        """One sentence that names ranks, operations and lines."""
        first = next(iter(self.operations.values()))[0]
        if self.aspect in (Aspect.ORDER, Aspect.GROUPS):
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
        if theirs[0].kind in P2P_KINDS:
            pairs = [
                f"message #{x.sequence} is {x.item} where it is sent ({place(x.origin)}) and "
                f"{y.item} where it is received ({place(y.origin)})"
                for x, y in zip(theirs, others, strict=True)
            ]
            how = f"rank {a} sends in another order than rank {b} receives"
            return f"{how}: " + "; ".join(pairs)
        pairs = [
            f"as {named(x)} rank {a} calls {_called(x, y)} ({place(x.origin)}) and "
            f"rank {b} {_called(y, x)} ({place(y.origin)})"
            for x, y in zip(theirs, others, strict=True)
        ]
        how = "on each other's groups" if self.aspect is Aspect.GROUPS else "in another order"
        return f"ranks {a} and {b} make the same calls {how}: " + "; ".join(pairs)


def _called(one: Operation, other: Operation) -> str:
    """`world.all_reduce(t) for weight`: the element of a loop where that is what differs."""
    text = shortened(one.origin.said)
    return f"{text} for {one.item}" if texts_differ(one.item, other.item) else text


def equal_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The part of a shape that all ranks must share: of all_to_all's rows only what a row is."""
    return shape[1:] if kind.endswith("all_to_all") else shape
