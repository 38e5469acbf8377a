"""Ranks that do not mean the same operation: the rules by which they are found.

A backend matches collectives of a group by their order alone, and messages by sender, receiver and
order. Where ranks mean different things, gloo adds up what it gets: another shape, another reduce
op or swapped calls give wrong numbers in silence. Titanium, a parallel Java, called the rule that
prevents it textual alignment: the same calls, in the same order (Kamil and Yelick, "Concurrency
analysis for parallel programs with textually aligned barriers", LCPC 2005).

agreement.py applies the rules on every rank as operations happen; the doctor applies them to the
journals afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from labkit.comm.agreement import items
from labkit.comm.agreement.call_order import OrderOfCalls, OrderOfItems, Said, Where
from labkit.comm.agreement.difference import EQUAL, QUEUED, Aspect, Difference
from labkit.comm.operation import P2P_KINDS, Operation, Timeline


class Disagreement(RuntimeError):
    """A rank found that another one means a different operation than itself."""


# No tensors of the reader's meet in these: any barrier may stand for another.
WITHOUT_DATA = ("barrier", "split", "share_memory", "new_group", "close")


def among(operations: Mapping[int, Operation]) -> Difference | None:
    """What differs between entries of one collective, by rank; None where they match."""
    for aspect, value in EQUAL.items():
        if len({value(operation) for operation in operations.values()}) > 1:
            return Difference(aspect, {rank: [each] for rank, each in operations.items()})
    known = {rank: [each] for rank, each in operations.items() if each.queued is not None}
    if len({QUEUED(each) for (each,) in known.values()}) > 1:
        return Difference(Aspect.QUEUE, known)
    for rank, operation in operations.items():
        for other, its in operations.items():
            # What a rank keeps for itself, it gets from itself: the backend checks that.
            if rank == other or operation.splits is None or its.splits is None:
                continue
            if (
                operation.splits[0][its.group.index(other)]
                != its.splits[1][operation.group.index(rank)]
            ):
                return Difference(Aspect.SPLITS, {rank: [operation], other: [its]})
    return None


def between(sender: int, send: Operation, receiver: int, recv: Operation) -> Difference | None:
    """What differs between a message and the buffer for it."""
    for aspect in (Aspect.LABEL, Aspect.DTYPE, Aspect.SHAPE):
        if EQUAL[aspect](send) != EQUAL[aspect](recv):
            return Difference(aspect, {sender: [send], receiver: [recv]})
    return None


def find(timelines: Sequence[Timeline], *, order: bool = True) -> Difference | None:
    """The first disagreement that the journals show; None where what has met also matches.

    order: whether the order of calls counts. It cannot be told from a part of the journals, which
    may begin in the middle of a round.
    """
    collectives: dict[tuple[str, int], dict[int, Operation]] = {}
    messages: dict[tuple[str, int, int, int], dict[str, Operation]] = {}
    for rank, timeline in enumerate(timelines):
        for operation in timeline.operations:
            if operation.kind in P2P_KINDS:
                assert operation.peer is not None
                ends = (rank, operation.peer)
                source, target = ends if operation.kind == "send" else ends[::-1]
                key = (operation.group_name, source, target, operation.sequence)
                messages.setdefault(key, {})[operation.kind] = operation
            else:
                collectives.setdefault((operation.group_name, operation.sequence), {})[rank] = (
                    operation
                )
    unequal = _first(among(operations) for operations in collectives.values()) or _first(
        between(source, both["send"], target, both["recv"])
        for (_, source, target, _), both in messages.items()
        if len(both) == 2
    )
    if unequal or not order:
        return unequal
    return _other_order(collectives) or _other_order_of_messages(messages)


def _first(differences: Iterable[Difference | None]) -> Difference | None:
    return next((each for each in differences if each is not None), None)


def _other_order(
    collectives: Mapping[tuple[str, int], Mapping[int, Operation]],
) -> Difference | None:
    """Two ranks that made the same calls in another order, in any group."""
    orders: dict[tuple[tuple[int, ...], int, int], tuple[OrderOfCalls, OrderOfItems]] = {}
    in_time = sorted(collectives.items(), key=lambda item: item[1][min(item[1])].index)
    for (group, sequence), by_rank in in_time:
        first, *others = sorted(by_rank)
        one, where = by_rank[first], Where(group, sequence)
        if one.label is not None or one.kind in WITHOUT_DATA:
            continue
        for other in others:
            two = by_rank[other]
            # Groups with the same members, though not those of torch with those of the lab.
            key = (one.group, first, other)
            of_calls, of_items = orders.setdefault(key, (OrderOfCalls(), OrderOfItems()))
            ours, theirs = said(one), said(two)
            circle: list[Where] = []
            if ours.text != theirs.text:
                circle = of_calls.differ(ours, theirs, where)
            if not circle and items.texts_differ(one.item, two.item):
                meant = meaning(one)
                circle = of_items.differ((meant, one.item), (meant, two.item), where)
            if circle:
                pairs = {r: [collectives[each][r] for each in circle] for r in (first, other)}
                num_groups = len({each.group for each in circle})
                return Difference(Aspect.GROUPS if num_groups > 1 else Aspect.ORDER, pairs)
    return None


def _other_order_of_messages(
    messages: Mapping[tuple[str, int, int, int], Mapping[str, Operation]],
) -> Difference | None:
    """A model's parameters that one rank sends in another order than the other receives them."""
    orders: dict[tuple[str, int, int], OrderOfItems] = {}
    for (group, source, target, number), both in sorted(messages.items()):
        sent, received = (both[kind].item if kind in both else None for kind in P2P_KINDS)
        if not items.texts_differ(sent, received):
            continue
        order = orders.setdefault((group, source, target), OrderOfItems())
        circle = order.differ(sent, received, Where(group, number))
        if circle:
            pairs = [messages[group, source, target, each.sequence] for each in circle]
            ends = {source: "send", target: "recv"}
            return Difference(
                Aspect.ORDER, {rank: [pair[kind] for pair in pairs] for rank, kind in ends.items()}
            )
    return None


def meaning(operation: Operation) -> tuple[object, ...]:
    """What must be equal on all ranks."""
    return tuple(value(operation) for value in EQUAL.values())


def said(operation: Operation) -> Said:
    """What must not change places: the operation and the texts of the reader's calls."""
    sites = (operation.origin, *operation.callers)
    texts = (*meaning(operation), *(site.said for site in sites))
    return Said(texts, tuple(site.spot for site in sites), operation.index)
