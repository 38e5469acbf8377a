"""Lines that the lab prints beside what the ranks print. Each begins with [labkit].

    print_note                     any such line
    report_late_messages           a run with a topology whose times are not those of the links
    report_unfinished_operations   operations that are unfinished when all ranks have returned:

    never waited for   an operation was started and got no wait(), so the contents of its tensors
                       are unknown
    never met          some members called a collective that others did not, or a message has only
                       one end
    other lines        ranks met in a collective from different lines, without a label


These are no errors: the run's values may be right. A send without a wait() is not reported if its
message was received.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from labkit.comm import Lateness, Operation, Timeline, Topology
from labkit.comm.mismatch import WITHOUT_DATA, collectives, has_order, innermost_differing_sites
from labkit.comm.operation import SHARED_MEMORY, listed, named, ranks_named, shortened, verb
from labkit.doctor import sources
from labkit.launch.run_result import Run

_COLUMNS = 96  # a page of JupyterLab breaks longer lines in the middle of a word
_COMMAND = re.compile("`[^`]*`")


def print_note(text: str) -> None:
    """Print a note, in lines that fit on a page. Text in backticks, to be copied, stays whole."""
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), f"[labkit] {text}")
    lines = textwrap.wrap(whole, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    print("\n".join(lines).replace("\0", " "), flush=True)


# Sometimes a core is busy with something else, and a message waits for it.
_TOLERATED_SHARE = 0.05


def report_late_messages(run: Run) -> None:
    """Print why a run's times are not those of its links; nothing for a run without a topology."""
    for line in _notes_on_throttling(run):
        print_note(f"{line}.")


def _notes_on_throttling(run: Run) -> list[str]:
    """Return notes on messages that came late, and on collectives that were not throttled."""
    if run.topology is None:
        return []
    lines = (
        _late(reduce(Lateness.plus, run.lateness, Lateness())),
        _not_throttled(run, run.topology),
    )
    return [line for line in lines if line]


def _late(lateness: Lateness) -> str:
    """Return a note if more messages than by chance came later than the links allow."""
    if lateness.num_late <= _TOLERATED_SHARE * lateness.num_messages:
        return ""
    mean_ms = lateness.late_s / lateness.num_late * 1e3
    return (
        f"{lateness.num_late} of {lateness.num_messages} messages arrived later than the links of "
        f"the topology allow, by {mean_ms:.2g} ms on average, because this machine was slower: "
        "these times are higher than the links'. Use slower links or larger messages"
    )


def _not_throttled(run: Run, topology: Topology) -> str:
    """Return a note on collectives that moved data between ranks with links, not throttled."""
    operations = (operation for timeline in run.timeline for operation in timeline.operations)
    kinds = dict.fromkeys(
        f"{each.kind} through shared memory" if each.medium == SHARED_MEMORY else each.kind
        for each in operations
        if each.is_collective and each.kind not in WITHOUT_DATA and _has_links(each, topology)
    )
    if not kinds:
        return ""
    return (
        f"{listed(list(kinds))} {verb(list(kinds), 'was')} not throttled to the links of the "
        "topology, and took the time that this machine takes. Only send and recv are throttled, "
        "and with them labkit.collectives"
    )


def _has_links(operation: Operation, topology: Topology) -> bool:
    """Return whether some messages between the ranks of its group are throttled."""
    hosts = {topology.host_of(rank) for rank in operation.group}
    return len(hosts) > 1 or (topology.fast is not None and len(operation.group) > 1)


_MOST_SHOWN = 5

Half = tuple[str, str, int, int]
"""One end of the messages between two ranks: kind, group, the rank itself and its peer."""


@dataclass(frozen=True)
class UnfinishedOperation:
    """An operation of one rank."""

    rank: int
    operation: Operation
    is_unwaited: bool
    unmet: tuple[int, ...]
    """Ranks that have no part in it."""

    @property
    def place(self) -> tuple[object, ...]:
        """Return a key that is equal for all notes that one line reports."""
        operation = self.operation
        whose = () if operation.is_collective else (self.rank, operation.peer)
        line = (operation.kind, operation.group_name, operation.origin.file, operation.origin.line)
        return (*line, self.is_unwaited, self.unmet, *whose)


def _notes_on_what_is_left(timelines: Sequence[Timeline]) -> list[str]:
    """Return a line for each place that left an operation unfinished, up to _MOST_SHOWN."""
    by_place: dict[tuple[object, ...], list[UnfinishedOperation]] = {}
    for each in _left(timelines):
        by_place.setdefault(each.place, []).append(each)
    lines = [*map(_said, by_place.values()), *_other_lines(timelines)]
    more = len(lines) - _MOST_SHOWN
    if more > 0:
        lines[_MOST_SHOWN:] = [f"The same in {more} more place{'s' * (more > 1)}"]
    return lines


def report_unfinished_operations(timelines: Sequence[Timeline]) -> None:
    """Print a line for each place that left an operation unfinished."""
    for line in _notes_on_what_is_left(timelines):
        print(f"[labkit] {line}.", flush=True)


def _other_lines(timelines: Sequence[Timeline]) -> list[str]:
    """Return `all_reduce #3 met from different lines, ... on rank 0 and ... on rank 1`."""
    by_calls: dict[tuple[object, ...], list[dict[int, Operation]]] = {}
    for by_rank in collectives(timelines).values():
        if len({each.call_chain for each in by_rank.values()}) == 1:
            continue
        calls = tuple((rank, each.call_chain) for rank, each in sorted(by_rank.items()))
        if all(map(has_order, by_rank.values())):
            by_calls.setdefault(calls, []).append(by_rank)
    return [_met(together) for together in by_calls.values()]


def _met(together: Sequence[dict[int, Operation]]) -> str:
    by_rank = together[0]
    ranks_at: dict[str, list[int]] = {}
    for rank, site in zip(
        sorted(by_rank),
        innermost_differing_sites([by_rank[r] for r in sorted(by_rank)]),
        strict=True,
    ):
        at = f"{shortened(site.description)} ({sources.place(site)})"
        ranks_at.setdefault(at, []).append(rank)
    first = next(iter(by_rank.values()))
    more = f" and {len(together) - 1} more" if len(together) > 1 else ""
    said = [f"{at} on {ranks_named(ranks)}" for at, ranks in ranks_at.items()]
    return f"{named(first)}{more} met from different lines, {listed(said)}"


def _left(timelines: Sequence[Timeline]) -> Iterator[UnfinishedOperation]:
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
            else:
                other = _other_half(operation, rank)
                if num_messages.get(other, 0) < operation.sequence:
                    unmet = (other[2],)
                if (*other, operation.sequence) in received:
                    is_unwaited = False
            if is_unwaited or unmet:
                yield UnfinishedOperation(rank, operation, is_unwaited, unmet)


def _counts(
    journals: Sequence[Sequence[Operation]],
) -> tuple[dict[tuple[str, tuple[int, ...]], dict[int, int]], dict[Half, int]]:
    """Count the collectives of each group by member, and the messages of each end."""
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


def _said(together: Sequence[UnfinishedOperation]) -> str:
    """Return `rank 1 never waited for all_reduce #2 (train.py, line 9), and rank 0 ...`."""
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
