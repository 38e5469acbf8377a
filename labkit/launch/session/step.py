"""Whether ranks are in step: each group's operations are matched on all of its members.

After a cell that failed on one rank, another may have posted an all_reduce that the first never
came to. The next all_reduce of the first would meet that one, and both would get wrong numbers. So
a session goes on after a failure only where everything that was posted has met its other side.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.comm import Operation, Timeline


def out_of_step(session: Sequence[Timeline], cell: Sequence[Timeline]) -> str:
    """What keeps the ranks from going on together, in words; empty when nothing does.

    session: the journals from its beginning, by rank. cell: the part of the cell that failed.
    """
    for rank, timeline in enumerate(cell):
        for operation in timeline.operations:
            if operation.failed:
                return f"{operation.name} was cut short on rank {rank}"
    if not any(timeline.operations for timeline in cell):
        return ""
    return _uneven_collectives(session) or _unmatched_messages(session)


def _uneven_collectives(session: Sequence[Timeline]) -> str:
    last: dict[tuple[str, tuple[int, ...]], dict[int, Operation]] = {}
    for rank, timeline in enumerate(session):
        for operation in timeline.operations:
            if operation.kind not in ("send", "recv"):
                group = last.setdefault((operation.group_name, operation.group), {})
                group[rank] = operation
    for (_, members), by_rank in last.items():
        ahead, operation = max(by_rank.items(), key=lambda item: item[1].sequence)
        for rank in members:
            if rank not in by_rank or by_rank[rank].sequence < operation.sequence:
                return f"rank {ahead} has called {operation.name}, and rank {rank} has not"
    return ""


def _unmatched_messages(session: Sequence[Timeline]) -> str:
    last: dict[tuple[str, str, int, int], Operation] = {}
    for rank, timeline in enumerate(session):
        for operation in timeline.operations:
            if operation.kind in ("send", "recv") and operation.peer is not None:
                last[operation.group_name, operation.kind, rank, operation.peer] = operation
    for (group, kind, rank, peer), operation in last.items():
        other = last.get((group, "recv" if kind == "send" else "send", peer, rank))
        if other is None or other.sequence < operation.sequence:
            return f"rank {rank} has posted {operation.name}, and rank {peer} not its side of it"
    return ""
