"""What ranks leave behind when all of them have returned: lines for the reader, or an error.

    never waited for   an operation was begun, and what it returned got no wait(): what its tensors
                       hold nobody knows
    never met          some members called a collective that others did not, or a message has only
                       one end
    mixed up           the same, but it came back: so it met something else, which the others handed
                       to the same process group by another way, and its numbers are wrong

Only the last is an error: of the others, the run's values may be right. A send that was not waited
for has left nothing where its message was received. A message of torch's own functions may meet a
Group's: between two ranks that used both, the journals do not say which met which, and no end is
missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from labkit.comm import Operation, Timeline
from labkit.comm.agreement.disagreement import WITHOUT_DATA
from labkit.comm.operation import P2P_KINDS
from labkit.comm.recorded import TITLE, HandedOver
from labkit.comm.words import named, ranks_named
from labkit.launch import sources

_MOST_SHOWN = 5

# (A barrier carries no numbers: what it has met is told of where that was something else.)
_MEETINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

_WORLD = "world"

Half = tuple[str, str, int, int]
"""One end of the messages between two ranks: kind, group, the rank itself and its peer."""


@dataclass(frozen=True)
class Left:
    """An operation of one rank."""

    rank: int
    operation: Operation
    is_unwaited: bool
    unmet: tuple[int, ...]
    """Ranks that have no part in it."""

    @property
    def is_mixed_up(self) -> bool:
        """It came back to this rank, which it does of none of these before all have come.

        On gloo: what comes back from nccl may still be under way.
        """
        operation = self.operation
        is_on_gloo = operation.queued is not None
        is_back = operation.done_s is not None and operation.payload_bytes > 0
        return bool(self.unmet) and is_back and is_on_gloo and self._has_to_meet

    @property
    def _has_to_meet(self) -> bool:
        """A root that sends needs nobody to come back, and who sends to a root, nobody either."""
        kind, is_root = self.operation.kind, self.operation.peer == self.rank
        if kind in ("broadcast", "scatter"):
            return not is_root and self.operation.peer in self.unmet
        return kind in _MEETINGS or (kind == "gather" and is_root)

    @property
    def place(self) -> tuple[object, ...]:
        """The same for those that are told in one line."""
        operation = self.operation
        whose = () if operation.is_collective else (self.rank, operation.peer)
        line = (operation.kind, operation.group_name, operation.origin.file, operation.origin.line)
        return (*line, self.is_unwaited, self.unmet, *whose)


def notes(timelines: Sequence[Timeline], calls: Sequence[Timeline]) -> list[str]:
    """A line for each place in the program that leaves something; by rank, the first at length.

    calls: of torch.distributed's functions.
    """
    by_place: dict[tuple[object, ...], list[Left]] = {}
    for each in _left(timelines, _met_by_calls(calls)):
        by_place.setdefault(each.place, []).append(each)
    lines = [_said(together) for together in by_place.values()]
    more = len(lines) - _MOST_SHOWN
    if more > 0:
        lines[_MOST_SHOWN:] = [f"So it is in {more} more place{'s' * (more > 1)}"]
    return lines


def mixed_up(timelines: Sequence[Timeline]) -> Left | None:
    """The first operation that met something else than itself."""
    return next((each for each in _left(timelines) if each.is_mixed_up), None)


def mixed_up_call(calls: Sequence[Timeline], handed_over: Mapping[int, HandedOver]) -> Left | None:
    """The first call of torch.distributed's functions that met something which was no call.

    Where all members have handed their process group as much, by whatever way, each of it has met
    the others'; so a call for which others made none has met what torch, in C++, handed over there.
    """
    refused = {call.group_name for journal in calls for call in journal.operations if call.failed}
    for each in _left(calls):
        operation = each.operation
        if operation.group_name in refused:
            continue  # what torch refused was called, and met nothing
        numbers = {
            len(handed_over[rank].by_group.get(operation.group_name, ()))
            if rank in handed_over
            else None
            for rank in operation.group
        }
        is_paired = len(numbers) == 1 and not numbers & {None, 0}
        has_data = operation.kind not in WITHOUT_DATA
        if operation.is_collective and has_data and each.unmet and is_paired:
            return each
    return None


def tell(timelines: Sequence[Timeline], calls: Sequence[Timeline]) -> None:
    """Print the lines."""
    for line in notes(timelines, calls):
        print(f"[labkit] {line}.", flush=True)


def _met_by_calls(calls: Sequence[Timeline]) -> set[Half]:
    """Both ends of the world's messages of which torch's functions sent or received some."""
    return {
        (kind, _WORLD, here, there)
        for rank, timeline in enumerate(calls)
        for call in timeline.operations
        if call.kind in P2P_KINDS and call.group_name == TITLE  # one with a tag has another name
        for kind, _, here, there in (_half(call, rank), _other_half(call, rank))
    }


def _left(timelines: Sequence[Timeline], uncertain: Collection[Half] = ()) -> Iterator[Left]:
    """uncertain: ends of messages that may have met something else than a Group's."""
    journals = [timeline.operations for timeline in timelines]
    num_calls, num_messages = _counts(journals)
    received = {
        (*_half(operation, rank), operation.sequence)
        for rank, journal in enumerate(journals)
        for operation in journal
        if operation.kind == "recv" and operation.done_s is not None and not operation.failed
    }
    for rank, journal in enumerate(journals):
        for operation in journal:
            if operation.failed:
                continue
            unmet: tuple[int, ...] = ()
            is_unwaited = operation.waited_s is None
            if operation.is_collective:
                calls = num_calls[operation.group_name, operation.group]
                unmet = tuple(m for m in operation.group if calls.get(m, 0) < operation.sequence)
            elif _half(operation, rank) in uncertain:
                is_unwaited = is_unwaited and operation.kind == "recv"
            else:
                other = _other_half(operation, rank)
                if num_messages.get(other, 0) < operation.sequence:
                    unmet = (other[2],)
                if (*other, operation.sequence) in received:
                    is_unwaited = False
            if is_unwaited or unmet:
                yield Left(rank, operation, is_unwaited, unmet)


def _counts(
    journals: Sequence[Sequence[Operation]],
) -> tuple[dict[tuple[str, tuple[int, ...]], dict[int, int]], dict[Half, int]]:
    """How many collectives of each group each member has called, and each end's messages."""
    calls: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    messages: dict[Half, int] = {}
    for rank, journal in enumerate(journals):
        for operation in journal:
            if operation.is_collective:
                of_group = calls.setdefault((operation.group_name, operation.group), {})
                of_group[rank] = max(of_group.get(rank, 0), operation.sequence)
            else:
                half = _half(operation, rank)
                messages[half] = max(messages.get(half, 0), operation.sequence)
    return calls, messages


def _half(operation: Operation, rank: int) -> Half:
    assert operation.peer is not None
    return (operation.kind, operation.group_name, rank, operation.peer)


def _other_half(operation: Operation, rank: int) -> Half:
    assert operation.peer is not None
    kind = "recv" if operation.kind == "send" else "send"
    return (kind, operation.group_name, operation.peer, rank)


def _said(together: Sequence[Left]) -> str:
    """`rank 1 never waited for all_reduce #2 (train.py, line 9), and rank 0 never called it`."""
    first = together[0]
    operation = first.operation
    ranks = ranks_named(sorted({each.rank for each in together}))
    num_more = len({each.operation.sequence for each in together}) - 1
    more = f" and {num_more} more of this line" if num_more else ""
    what = f"{named(operation)}{more} ({sources.place(operation.origin)})"
    it = "them" if num_more else "it"
    met = {"send": f"received {it}", "recv": f"sent {it}"}.get(operation.kind, f"called {it}")
    if first.unmet and first.is_unwaited:
        return f"{ranks} never waited for {what}, and {ranks_named(first.unmet)} never {met}"
    if first.unmet:
        return f"{ranks} called {what}, and {ranks_named(first.unmet)} never {met}"
    unknown = f"whether {it} arrived" if operation.kind == "send" else "what the tensors hold"
    return f"{ranks} never waited for {what}: until wait() has returned, nobody knows {unknown}"
