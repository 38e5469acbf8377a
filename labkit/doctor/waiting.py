"""The wait-for graph of a run, from the journals: who waits for whom.

A rank that blocks on an operation waits until every rank whose part it needs has posted that part.
So it waits for ever when one of those has left, or, in a cycle, waits itself. (The graph is that
of deadlock detection in distributed databases: Chandy, Misra and Haas, "Distributed deadlock
detection", 1983, the resource model; Knapp, ACM Computing Surveys, 1987, calls it the AND model.)

What a collective needs is stated for gloo, whose messages are meetings. nccl buffers small sends
and chooses its own trees, and its waits only order streams: there the journal says little about
who blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labkit.comm import Operation
from labkit.comm.recorder import Recorded, is_foreign
from labkit.doctor.halt import Halt
from labkit.doctor.stacks import Stack
from labkit.doctor.verdict import Stage

_OTHER_END = {"send": "recv", "recv": "send"}


def blocked_in(operations: Sequence[Operation]) -> Operation | None:
    """The operation of a journal that its rank waits for and does not have yet."""
    for operation in reversed(operations):
        if operation.is_waited_for:
            return operation
    return None


@dataclass(frozen=True)
class View:
    """All that is known of one rank.

    `operations`: its journal; `recorded`: what torch did without a Group (empty where not asked).
    `stack`: where its function is, and whether it has threads besides that one.
    `halt`: what keeps its process from running, where something did when it was asked.
    """

    stage: Stage
    operations: Sequence[Operation] = ()
    recorded: Recorded = field(default_factory=Recorded)
    stack: Stack = field(default_factory=Stack)
    halt: Halt | None = None

    @property
    def is_stopped(self) -> bool:
        """Return whether it executes nothing until somebody lets it go on."""
        return not self.stage.is_over and self.halt is not None and self.halt.is_stop

    @property
    def waits_in(self) -> Operation | None:
        """The operation that the rank blocks on; None while it computes, and once it is over."""
        if self.stage is not Stage.RUNNING:
            return None
        return blocked_in(self.operations) or self.recorded.waits_in

    @property
    def has_others_at_work(self) -> bool:
        """Return whether other threads than the one that we see may post something for the rank."""
        return self.stack.num_other_threads > 0

    def is_unreported(self, wanted: Operation) -> bool:
        """Return whether only the rank knows its part, and has not answered. A dead one cannot."""
        has_answered = self.recorded.is_known or self.stage is Stage.DIED
        return is_foreign(wanted) and not has_answered

    def has_posted(self, wanted: Operation, rank: int) -> bool:
        """Return whether our part of what `rank` waits in is there.

        A journal of which only an end is known is enough, with the last operation of each kind:
        they are counted from 1 without a gap.
        """
        if is_foreign(wanted):
            return self.recorded.enqueued.get(wanted.group_name, 0) >= wanted.sequence
        is_ahead = False
        for operation in reversed(self.operations):
            is_its_kind = (
                operation.is_collective
                if wanted.is_collective
                else operation.kind == _OTHER_END[wanted.kind] and operation.peer == rank
            )
            same_group = operation.group_name == wanted.group_name
            if same_group and is_its_kind:
                if operation.sequence == wanted.sequence:
                    return not operation.failed
                if operation.sequence < wanted.sequence:
                    return is_ahead
                is_ahead = True
        return is_ahead


@dataclass(frozen=True)
class Wait:
    """A rank that blocks on an operation, and the ranks whose part in it is missing."""

    rank: int
    operation: Operation
    missing: tuple[int, ...]
    unreported: tuple[int, ...] = ()
    """The missing ranks that have not reported what they handed to torch: it may be there."""

    @property
    def absent(self) -> list[int]:
        """Return the ranks whose part is certainly missing."""
        return [rank for rank in self.missing if rank not in self.unreported]

    @property
    def can_end(self) -> bool:
        """Return whether everybody has posted their part."""
        return not self.missing


def waits(views: Sequence[View]) -> dict[int, Wait]:
    """Every rank that waits, with the ranks that it waits for."""
    found = {}
    for rank, view in enumerate(views):
        operation = view.waits_in
        if operation is not None:
            found[rank] = _wait(rank, operation, views)
    return found


def waits_of(rank: int, views: Sequence[View]) -> list[Wait]:
    """All operations that a rank's threads block on: each may be in another one."""
    return [
        _wait(rank, operation, views)
        for operation in views[rank].operations
        if operation.is_waited_for
    ]


def _wait(rank: int, operation: Operation, views: Sequence[View]) -> Wait:
    missing = tuple(
        other
        for other in needed_by(operation, rank)
        if other != rank and not views[other].has_posted(operation, rank)
    )
    unreported = tuple(other for other in missing if views[other].is_unreported(operation))
    return Wait(rank, operation, missing, unreported)


def needed_by(operation: Operation, rank: int) -> Sequence[int]:
    """The ranks that must post their part before `rank` gets through the operation.

    For a broadcast those are its ancestors and children in gloo's binomial tree; for gather and
    scatter the root, and for the root everybody.
    """
    if not operation.is_collective:
        assert operation.peer is not None
        return [operation.peer]
    root = operation.peer
    if root is None or (operation.kind != "broadcast" and rank == root):
        return operation.group
    if operation.kind != "broadcast":
        return [root]
    group = operation.group
    first, here = group.index(root), group.index(rank)
    virtual = (here - first) % len(group)
    return [group[(v + first) % len(group)] for v in _tree_neighbours(virtual, len(group))]


def _tree_neighbours(virtual: int, size: int) -> list[int]:
    """Ancestors and children of a node; the parent of v is v without its highest bit."""
    ancestors, node = [], virtual
    while node:
        node -= 1 << (node.bit_length() - 1)
        ancestors.append(node)
    steps = [1 << k for k in range(virtual.bit_length(), size.bit_length())]
    return ancestors + [virtual + step for step in steps if virtual + step < size]


def cycle(found: Mapping[int, Wait]) -> list[Wait]:
    """Ranks that wait for each other, each for the next and the last for the first; [] for none."""
    cleared: set[int] = set()  # no cycle leads through these
    for start in found:
        path = [start]
        while path:
            following = [r for r in found[path[-1]].absent if r in found and r not in cleared]
            closing = [rank for rank in following if rank in path]
            if closing:
                return [found[rank] for rank in path[path.index(closing[0]) :]]
            if following:
                path.append(following[0])
            else:
                cleared.add(path.pop())
    return []
