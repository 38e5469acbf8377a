"""What ranks of one host leave for each other in folders, and what the journals there prove."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.comm.agreement import disagreement
from labkit.comm.agreement.call_order import OrderOfCalls, OrderOfItems
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


class Witness:
    """Reads our journal and another member's when something seems to differ.

    The journals decide: a hash may have been read half-written. Where they show no difference,
    nothing is raised.
    """

    def __init__(self, journals: Path, group_name: str, ranks: Sequence[int], member: int) -> None:
        """`ranks`: global numbers of the group's members; `member`: which of them we are."""
        self._journals, self._group_name = journals, group_name
        self._ranks, self._member = ranks, member

    def testify_on_collective(self, sequence: int, peer: int) -> None:
        """Raise Disagreement if the n-th collective differs between us and a member."""
        ranks = (self._ranks[self._member], self._ranks[peer])

        def find() -> Difference | None:
            entries = {
                rank: operation
                for rank in ranks
                for operation in self._operations(rank)
                if operation.is_collective and operation.sequence == sequence
            }
            return disagreement.among(entries)

        _raise_what_is_found(find)

    def testify_on_message(self, number: int, peer: int, *, sends: bool) -> None:
        """Raise Disagreement if our n-th message to (or from) a member does not fit its buffer."""
        ours, theirs = self._ranks[self._member], self._ranks[peer]
        source, target = (ours, theirs) if sends else (theirs, ours)

        def find() -> Difference | None:
            send = self._message(source, "send", target, number)
            recv = self._message(target, "recv", source, number)
            if send is None or recv is None:
                return None
            return disagreement.between(source, send, target, recv)

        _raise_what_is_found(find)

    def testify_on_order(self, peer: int, group_names: Collection[str]) -> None:
        """Raise Disagreement if we and a member make the same calls in another order.

        group_names: of the groups that these calls are on.
        """
        ours, theirs = self._ranks[self._member], self._ranks[peer]

        def find() -> Difference | None:
            timelines = [Timeline() for _ in range(max(ours, theirs) + 1)]
            for rank in (ours, theirs):
                timelines[rank] = Timeline(self._operations(rank, group_names))
            return disagreement.find(timelines)

        _raise_what_is_found(find)

    def _operations(self, rank: int, group_names: Collection[str] = ()) -> list[Operation]:
        """What a member has posted on this group so far, or on these."""
        journal = read_journal(self._journals / f"rank-{rank}")
        wanted = group_names or (self._group_name,)
        return [each for each in journal.operations if each.group_name in wanted]

    def _message(self, rank: int, kind: str, peer: int, number: int) -> Operation | None:
        for operation in self._operations(rank):
            if (operation.kind, operation.peer, operation.sequence) == (kind, peer, number):
                return operation
        return None


def _raise_what_is_found(find: Callable[[], Difference | None]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    difference = find()
    while difference is None and time.monotonic() < deadline:
        time.sleep(0.005)  # the other one's entry in its journal may be a moment behind
        difference = find()
    if difference is not None:
        raise Disagreement(f"{difference.text(str)}. {ADVICE[difference.aspect]}")
