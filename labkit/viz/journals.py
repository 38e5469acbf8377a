"""A run's journals by rank, with each send matched to its receive, for pictures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from labkit.comm.operation import Operation, Timeline


def timelines_of(run: Any) -> list[Timeline]:
    """Return the timelines by rank: of a Run, of a failed run's error, or the list itself.

    Raises TypeError for anything else.
    """
    timelines = getattr(run, "timeline", run)
    is_list = isinstance(timelines, (list, tuple))
    if not is_list or not all(isinstance(each, Timeline) for each in timelines):
        raise TypeError(
            f"a {type(run).__name__} has no timelines to show; pass what labkit.run returned, the "
            "error that it raised, or a list of Timelines by rank"
        )
    return list(timelines)


class Message(NamedTuple):
    """A send and the receive that took it, on global ranks `source` and `destination`."""

    source: int
    destination: int
    send: Operation
    recv: Operation


def matched_messages(timelines: Sequence[Timeline]) -> list[Message]:
    """Return every message of which both ends are in the journals, in order of posting.

    timelines: by global rank. The n-th send from a source to a destination within a group meets the
    n-th receive there from that source: the order of messages between two ranks is kept.
    """
    receives: dict[tuple, Operation] = {}
    for rank, timeline in enumerate(timelines):
        for operation in timeline.operations:
            if operation.kind == "recv":
                receives[_key(operation, operation.peer, rank)] = operation
    messages = []
    for rank, timeline in enumerate(timelines):
        for operation in timeline.operations:
            if operation.kind == "send":
                recv = receives.get(_key(operation, rank, operation.peer))
                if recv is not None and operation.peer is not None:
                    messages.append(Message(rank, operation.peer, operation, recv))
    return sorted(messages, key=lambda message: message.send.posted_s)


def _key(operation: Operation, source: int | None, destination: int | None) -> tuple:
    return operation.group, operation.group_name, source, destination, operation.sequence
