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

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from labkit.comm.agreement.difference import EQUAL, Aspect, Difference
from labkit.comm.operation import P2P_KINDS, Operation, Timeline
from labkit.comm.recorded import is_foreign


class Disagreement(RuntimeError):
    """A rank found that another one means a different operation than itself."""


# No tensors of the reader's meet in these: any barrier may stand for another.
WITHOUT_DATA = ("barrier", "split", "share_memory", "close")
ByRank = dict[int, Operation]


def among(operations: Mapping[int, Operation]) -> Difference | None:
    """What differs between entries of one collective, by rank; None where they match."""
    for aspect, value in EQUAL.items():
        if len({value(operation) for operation in operations.values()}) > 1:
            return Difference(aspect, {rank: [each] for rank, each in operations.items()})
    for (rank, operation), (other, its) in itertools.permutations(operations.items(), 2):
        # What a rank keeps for itself, it gets from itself: the backend checks that.
        if operation.splits is None or its.splits is None:
            continue
        sent = operation.splits[0][its.group.index(other)]
        if sent != its.splits[1][operation.group.index(rank)]:
            return Difference(Aspect.SPLITS, {rank: [operation], other: [its]})
    return None


def between(sender: int, send: Operation, receiver: int, recv: Operation) -> Difference | None:
    """What differs between a message and the buffer for it."""
    for aspect in (Aspect.LABEL, Aspect.DTYPE, Aspect.SHAPE):
        if EQUAL[aspect](send) != EQUAL[aspect](recv):
            return Difference(aspect, {sender: [send], receiver: [recv]})
    return None


def swap(by_rank: Mapping[int, Sequence[Operation]]) -> Difference | None:
    """Two ranks that make two calls, one after the other, in another order; else None.

    by_rank: of two ranks, the same two collectives of a group.
    """
    (one, two), (its_one, its_two) = (list(map(_call, calls)) for calls in by_rank.values())
    is_swap = one != two and (one, two) == (its_two, its_one) and None not in (one, two)
    return Difference(Aspect.ORDER, by_rank) if is_swap else None


def _call(operation: Operation) -> tuple[object, ...] | None:
    """What must not change places; None where the order does not count."""
    if is_foreign(operation) or not has_order(operation):  # torch's record has no labels or roots
        return None
    return (*(value(operation) for value in EQUAL.values()), operation.called)


def has_order(operation: Operation) -> bool:
    """Whether it counts which line calls: a label says what an operation is for."""
    return operation.label is None and operation.kind not in WITHOUT_DATA


def find(timelines: Sequence[Timeline]) -> Difference | None:
    """The first disagreement that the journals show; None where what has met also matches."""
    met = collectives(timelines)
    return (
        _first(map(among, met.values()))
        or _first(between(*ends) for ends in _messages(timelines))
        or _first(map(swap, _in_a_row(met)))
    )


def collectives(timelines: Sequence[Timeline]) -> dict[tuple[str, int], ByRank]:
    """What has met, by the group's name and its count of collectives."""
    met: dict[tuple[str, int], ByRank] = {}
    for rank, timeline in enumerate(timelines):
        for each in timeline.operations:
            if each.is_collective:
                met.setdefault((each.group_name, each.sequence), {})[rank] = each
    return met


def _in_a_row(met: Mapping[tuple[str, int], ByRank]) -> Iterator[dict[int, list[Operation]]]:
    """Of two ranks that differ, every two collectives of a group that follow each other."""
    for (group, sequence), by_rank in met.items():
        before = met.get((group, sequence - 1), {})
        if len({each.called for each in by_rank.values()}) == 1:
            continue
        shared = sorted(by_rank.keys() & before.keys(), reverse=True)
        firsts = {(before[rank].called, by_rank[rank].called): rank for rank in shared}
        for ranks in itertools.combinations(sorted(firsts.values()), 2):
            yield {rank: [before[rank], by_rank[rank]] for rank in ranks}


def _messages(timelines: Sequence[Timeline]) -> Iterator[tuple[int, Operation, int, Operation]]:
    """Sender, its end, receiver and its end, of each message of which both are there."""
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
