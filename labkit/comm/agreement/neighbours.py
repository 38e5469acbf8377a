"""What ranks of one host leave for each other in folders, and what the journals there prove."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.comm.agreement import disagreement
from labkit.comm.agreement.call_order import OrderOfCalls, OrderOfItems, Where
from labkit.comm.agreement.difference import ADVICE, Difference
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.operation import Operation, Timeline
from labkit.comm.read_journal import read_journal

if TYPE_CHECKING:
    from labkit.comm.agreement.agreement import Agreement

_PATIENCE_S = 10.0  # the other's process may be stopped between its two notes


@dataclass(frozen=True)
class Orders:
    """Our calls and another rank's, side by side."""

    of_calls: OrderOfCalls = field(default_factory=OrderOfCalls)
    of_items: OrderOfItems = field(default_factory=OrderOfItems)


@dataclass(frozen=True)
class Neighbours:
    """Ranks of one host, by global number, and the folders that they share."""

    ranks: frozenset[int]
    tables: Path
    journals: Path
    agreements: list[Agreement] = field(default_factory=list, compare=False)
    """Of the groups that compare what they mean; each enters itself."""
    _orders: dict[tuple[int, tuple[int, ...]], Orders] = field(default_factory=dict, compare=False)
    _turns: dict[tuple[int, ...], Iterator[int]] = field(default_factory=dict, compare=False)

    def orders_with(self, rank: int, members: Sequence[int]) -> Orders:
        """Those of our calls and of a rank's, one for all groups that have the same members."""
        return self._orders.setdefault((rank, tuple(members)), Orders())

    def turns(self, members: Sequence[int]) -> Iterator[int]:
        """Counts our calls on all groups of these members."""
        return self._turns.setdefault(tuple(members), itertools.count())


NOBODY = Neighbours(frozenset(), Path(), Path())


class _NotYet(Exception):
    """An entry that was declared is not in its rank's journal so far."""


class Witness:
    """Reads our journal and another member's when something seems to differ.

    The journals decide: they have what was called, of which the tables only have hashes. Where they
    show no difference, nothing is raised.
    """

    def __init__(self, journals: Path, group_name: str, ranks: Sequence[int], member: int) -> None:
        """`ranks`: global numbers of the group's members; `member`: which of them we are."""
        self._journals, self._group_name = journals, group_name
        self._ranks, self._member = ranks, member

    def testify_on_collective(self, sequence: int, peer: int) -> None:
        """Raise Disagreement if the n-th collective differs between us and a member."""
        ranks = (self._ranks[self._member], self._ranks[peer])
        where = Where(self._group_name, sequence)

        def find() -> Difference | None:
            return disagreement.among(
                {rank: _collectives(self._operations(rank), [where])[0] for rank in ranks}
            )

        _raise_what_is_found(find)

    def testify_on_message(self, number: int, peer: int, *, sends: bool) -> None:
        """Raise Disagreement if our n-th message to (or from) a member does not fit its buffer."""
        (source, _), (target, _) = ends = self._ends(peer, sends=sends)

        def find() -> Difference | None:
            send, recv = (
                _message(self._operations(rank), kind, other, number)
                for (rank, kind), (other, _) in zip(ends, ends[::-1], strict=True)
            )
            return disagreement.between(source, send, target, recv)

        _raise_what_is_found(find)

    def testify_on_order(self, peer: int, circle: Collection[Where]) -> None:
        """Raise Disagreement if we and a member make the same calls in another order.

        circle: where these calls met.
        """
        ranks = (self._ranks[self._member], self._ranks[peer])

        def find() -> Difference | None:
            timelines = [Timeline() for _ in range(max(ranks) + 1)]
            for rank in ranks:
                operations = self._operations(rank, {each.group for each in circle})
                _collectives(operations, circle)
                timelines[rank] = Timeline(operations)
            return disagreement.find(timelines)

        _raise_what_is_found(find)

    def testify_on_order_of_messages(self, number: int, peer: int, *, sends: bool) -> None:
        """Raise Disagreement if messages up to our n-th are a model's, in another order there."""
        ends = self._ends(peer, sends=sends)

        def find() -> Difference | None:
            timelines = [Timeline() for _ in range(max(rank for rank, _ in ends) + 1)]
            for (rank, kind), (other, _) in zip(ends, ends[::-1], strict=True):
                timelines[rank] = Timeline(self._operations(rank))
                _message(timelines[rank].operations, kind, other, number)
            return disagreement.find(timelines)

        _raise_what_is_found(find)

    def _ends(self, peer: int, *, sends: bool) -> tuple[tuple[int, str], tuple[int, str]]:
        """Who sends, and who receives: a global number, and what its operation is called."""
        ours, theirs = self._ranks[self._member], self._ranks[peer]
        source, target = (ours, theirs) if sends else (theirs, ours)
        return (source, "send"), (target, "recv")

    def _operations(self, rank: int, group_names: Collection[str] = ()) -> list[Operation]:
        """What a member has posted on this group so far, or on these."""
        journal = read_journal(self._journals / f"rank-{rank}")
        wanted = group_names or (self._group_name,)
        return [each for each in journal.operations if each.group_name in wanted]


def _collectives(operations: Sequence[Operation], places: Collection[Where]) -> list[Operation]:
    """Those at these places. Raises _NotYet."""
    by_place = {Where(e.group_name, e.sequence): e for e in operations if e.is_collective}
    if not all(where in by_place for where in places):
        raise _NotYet
    return [by_place[where] for where in places]


def _message(operations: Sequence[Operation], kind: str, peer: int, number: int) -> Operation:
    """One end of a message. Raises _NotYet."""
    for operation in operations:
        if (operation.kind, operation.peer, operation.sequence) == (kind, peer, number):
            return operation
    raise _NotYet


def _raise_what_is_found(find: Callable[[], Difference | None]) -> None:
    """Look once all is there that was declared: a rank writes its journal a moment after that."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(_NotYet):
            difference = find()
            if difference is not None:
                raise Disagreement(f"{difference.text(str)}. {ADVICE[difference.aspect]}")
            return
        time.sleep(0.005)
