"""Where every rank was, in words, from the journals.

A first aid: it says who waits in which operation and who does not, and finds the deadlocks that
follow from a rank having returned.
"""

from collections.abc import Sequence
from enum import Enum

from labkit.comm import Operation, Timeline
from labkit.launch import sources


class Stage(Enum):
    """How far a rank has come."""

    STARTING = "starting"
    RUNNING = "running"
    RETURNED = "returned"
    RAISED = "raised"
    DIED = "died"


def waits_in(timeline: Timeline) -> Operation | None:
    """The operation that the rank blocks on; None while it computes."""
    for operation in reversed(timeline.operations):
        if operation.waited_s is not None and operation.done_s is None:
            return operation
    return None


def position(stage: Stage, timeline: Timeline) -> str:
    """Where one rank is: `waits in all_reduce #4 (cell 7, line 12)`."""
    if stage is Stage.STARTING:
        return "was still starting"
    waiting = waits_in(timeline)
    if waiting is not None and stage is not Stage.RETURNED:
        return f"waits in {waiting.name} ({sources.place(waiting.origin)})"
    last = timeline.operations[-1] if timeline.operations else None
    after = "before any operation" if last is None else f"after {last.name}"
    return f"{'computes' if stage is Stage.RUNNING else stage.value} {after}"


def summary(positions: Sequence[str]) -> str:
    """All ranks, those in the same place together: one indented line for each place."""
    ranks_at: dict[str, list[int]] = {}
    for rank, where in enumerate(positions):
        ranks_at.setdefault(where, []).append(rank)
    return "\n".join(
        f"  {_names(ranks)} {_plural(where, ranks)}" for where, ranks in ranks_at.items()
    )


def cannot_come(stages: Sequence[Stage], timelines: Sequence[Timeline]) -> str | None:
    """Which rank waits for one that has returned without doing its part, or None.

    A returned rank posts nothing more, unless from a thread that it left behind: an operation that
    needs one which is not in its journal will not end.
    """
    for rank, (stage, timeline) in enumerate(zip(stages, timelines, strict=True)):
        waiting = waits_in(timeline) if stage is Stage.RUNNING else None
        if waiting is None:
            continue
        for other in _needed_by(waiting, rank):
            gone = other != rank and stages[other] is Stage.RETURNED
            if gone and _lacks(timelines[other], waiting, rank):
                return (
                    f"rank {rank} waits in {waiting.name} ({sources.place(waiting.origin)}), but "
                    f"rank {other} has returned without {_counterpart(waiting, rank)}"
                )
    return None


def _needed_by(waiting: Operation, rank: int) -> Sequence[int]:
    """The ranks whose part this rank waits for."""
    if waiting.peer is None or waiting.peer == rank:
        return waiting.group
    return [waiting.peer]  # of a message, or the root of a collective


def _lacks(timeline: Timeline, waiting: Operation, rank: int) -> bool:
    """Whether a complete journal misses its side of what rank `rank` waits in."""
    same_group = [op for op in timeline.operations if op.group_name == waiting.group_name]
    if waiting.kind in ("send", "recv"):
        kind = "recv" if waiting.kind == "send" else "send"
        posted = sum(op.kind == kind and op.peer == rank for op in same_group)
        return posted < waiting.sequence
    return sum(op.kind not in ("send", "recv") for op in same_group) < waiting.sequence


def _counterpart(waiting: Operation, rank: int) -> str:
    if waiting.kind == "recv":
        return f"sending to rank {rank} a {_ordinal(waiting.sequence)} time"
    if waiting.kind == "send":
        return f"receiving from rank {rank} a {_ordinal(waiting.sequence)} time"
    return f"calling {waiting.kind} #{waiting.sequence}"


def _ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0)
    return f"{number}{suffix or 'th'}"


def _names(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _plural(where: str, ranks: list[int]) -> str:
    """`waits` becomes `wait` for several ranks, and so on."""
    if len(ranks) == 1:
        return where
    verb, _, rest = where.partition(" ")
    return f"{ {'waits': 'wait', 'computes': 'compute', 'was': 'were'}.get(verb, verb) } {rest}"
