"""A run that does not end, as a finding: who waits for what, and why it cannot come."""

import dataclasses

from labkit.comm.operation import Operation, Site
from labkit.grade import own_code
from labkit.grade.evidence import Attempt, CaseEvidence
from labkit.grade.mismatch import not_all_call
from labkit.grade.outcome import Finding, Outcome
from labkit.launch import sources
from labkit.launch.diagnosis.waiting import blocked_in
from labkit.launch.errors import RunError

_ALL_SEND = (
    "a send is complete only when the other side receives, and every rank waits for its send "
    "before it comes to its receive. Post one of the two without blocking (isend, irecv), and wait "
    "for both afterwards"
)
_ALL_RECEIVE = (
    "every rank waits for a message before it sends its own, so none is ever sent. Post one of the "
    "two without blocking (isend, irecv), and wait for both afterwards"
)
_LOADING = (
    "the file does not come to its end when it is loaded: something outside of the function loops "
    "or waits"
)
NEVER_BEGAN = "never began"
NOT_BEGUN = (
    "the processes were still starting, or importing libraries, when the time was up, and nothing "
    "of yours had been called: the machine is busy with something else. Check again, or give it "
    "longer with timeout_s"
)
BETWEEN_CALLS = "does not end in time"
_BETWEEN_CALLS = (
    "the time was up while nothing of yours was running, between two calls, before the first or in "
    "the import of a library: the machine is busy with something else. Check again, or give it "
    "longer with timeout_s"
)
UNDER_WAY = "does not finish what every rank has begun"
_UNDER_WAY = (
    "every rank is in the same operation, so nobody is missing, and yet it has not ended: the "
    "machine is busy with something else, or the data is large. Check again, or give it longer "
    "with timeout_s"
)
STILL_AT_WORK = "is still at work when the time is up"
_STILL_AT_WORK = (
    "the ranks had not come to a standstill: a loop that communicates without end, or a machine "
    "that is busy with something else. Where each of them was, is below; check again, or give it "
    "longer with timeout_s"
)
OF_A_BUSY_MACHINE = (NEVER_BEGAN, BETWEEN_CALLS, UNDER_WAY, STILL_AT_WORK)
"""What says little about the code: it is given longer, once, and no grader reads more into it."""
_ENDING = (
    "the function has returned on every rank, and the processes have not come to their end in "
    "time: a thread of yours that goes on, or a machine that is busy with something else. Wait for "
    "your threads, or check again"
)


def explain_hang(attempt: Attempt, evidence: CaseEvidence | None, failure: RunError) -> Finding:
    """Names the wait, from where every rank was when the run was ended.

    `evidence`: the case that did not end; None while the code was loading.
    """
    if evidence is None:
        return _while_loading(attempt, failure)
    ranks = range(attempt.world_size)
    stacks = "\n".join(line for rank in ranks for line in _was_here(rank, failure))
    if attempt.was_moving:
        name, why = STILL_AT_WORK, _STILL_AT_WORK
        return Finding(Outcome.HUNG, name, why, evidence.label, None, details=stacks)
    stuck = [rank for rank in ranks if not _has_left(rank, evidence, failure)]
    if not stuck:
        name = "does not end after its last return"
        return Finding(Outcome.HUNG, name, _ENDING, evidence.label, 1, details=stacks)
    # Of the case: between two cases ranks meet, and who waits there is in no call of the learner's.
    waits = {rank: blocked_in(evidence.operations[rank]) for rank in stuck}
    blocked = {rank: operation for rank, operation in waits.items() if operation is not None}
    busy = [rank for rank in stuck if rank not in blocked]
    details = _positions(blocked, busy, evidence, failure)
    alone = {rank: operation for rank, operation in blocked.items() if operation.is_collective}
    if busy:
        name, why, where = _busy(busy[0], failure)
    elif len(alone) == attempt.world_size and _all_have_begun(list(alone.values())):
        name, why, where = UNDER_WAY, _UNDER_WAY, blocked[0].origin
    elif alone:
        first = next(iter(alone.values())).group_name
        of_one = {rank: each for rank, each in alone.items() if each.group_name == first}
        finding = not_all_call(evidence, of_one)
        return dataclasses.replace(finding, first_seen=evidence.label, details=details)
    else:
        name, why, where = _waiting(blocked, evidence)
    return Finding(Outcome.HUNG, name, why, evidence.label, 3, where, details=details)


def _while_loading(attempt: Attempt, failure: RunError) -> Finding:
    ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
    where = None if attempt.was_moving else own_code.site_in_stack(failure.stacks[0])
    name, why = ("does not finish loading", _LOADING) if where else (NEVER_BEGAN, NOT_BEGUN)
    details = own_code.of_stack(failure.stacks[0])
    return Finding(Outcome.HUNG, name, why, ranks, 1, where, details=details)


def _has_left(rank: int, evidence: CaseEvidence, failure: RunError) -> bool:
    """Whether the function came back on this rank, and nothing of the learner's runs there now."""
    return evidence.has_returned(rank) and own_code.site_in_stack(failure.stacks[rank]) is None


def _was_here(rank: int, failure: RunError) -> list[str]:
    """The rank's stack, below its number."""
    stack = own_code.of_stack(failure.stacks[rank]).rstrip()
    return [f"rank {rank} was here:", stack] if stack else [f"rank {rank} was in no line of yours"]


def _busy(rank: int, failure: RunError) -> tuple[str, str, Site | None]:
    """(name, explanation, line) of a rank that is in no operation."""
    why = (
        f"rank {rank} neither returns nor communicates: it computes, sleeps or loops. "
        "The other ranks can only wait for it"
    )
    where = own_code.site_in_stack(failure.stacks[rank])
    if where is None:
        return BETWEEN_CALLS, _BETWEEN_CALLS, None
    return "loops without communicating", why, where


def _waiting(blocked: dict[int, Operation], evidence: CaseEvidence) -> tuple[str, str, Site | None]:
    """(name, explanation, line) where every rank that has not returned is in an operation."""
    kinds = {operation.kind for operation in blocked.values()}
    if len(blocked) == evidence.world_size:
        if kinds == {"send"}:
            return "every rank is in send: nobody receives", _ALL_SEND, blocked[0].origin
        if kinds == {"recv"}:
            return "every rank is in recv: nobody sends", _ALL_RECEIVE, blocked[0].origin
    rank = _most_telling(blocked, evidence)
    partner = "sends" if blocked[rank].kind == "recv" else "receives"
    name = f"waits for a message that nobody {partner}"
    return name, _one_sided(rank, blocked[rank], evidence), blocked[rank].origin


def _all_have_begun(operations: list[Operation]) -> bool:
    """Whether they wait for collectives of one group, and every member of it is among them.

    Of those, the first in the group's order is one that nobody has yet to call.
    """
    groups = {operation.group_name for operation in operations}
    return len(groups) == 1 and len(operations) == len(operations[0].group)


def _most_telling(blocked: dict[int, Operation], evidence: CaseEvidence) -> int:
    """The rank whose partner has returned already, if there is one: its wait is the first cause."""
    for rank, operation in blocked.items():
        if operation.peer is not None and evidence.has_returned(operation.peer):
            return rank
    return next(iter(blocked))


def _one_sided(rank: int, operation: Operation, evidence: CaseEvidence) -> str:
    peer = operation.peer
    counterpart = "send to" if operation.kind == "recv" else "receive from"
    has_returned = peer is not None and evidence.has_returned(peer)
    state = "has returned" if has_returned else "waits elsewhere"
    return (
        f"rank {rank} waits in {operation.name} ({sources.place(operation.origin)}), and rank "
        f"{peer} {state} without having posted its {counterpart} rank {rank}. Count the steps of "
        "both, and compare whom each of them names as its partner"
    )


def _positions(
    blocked: dict[int, Operation], busy: list[int], evidence: CaseEvidence, failure: RunError
) -> str:
    """Where every rank was, one line each; and the stacks of those that did not communicate."""
    lines = []
    for rank in range(evidence.world_size):
        if rank in blocked:
            place = sources.place(blocked[rank].origin)
            lines.append(f"rank {rank} waits in {blocked[rank].name} ({place})")
        elif rank in busy:
            lines += _was_here(rank, failure)
        else:
            lines.append(f"rank {rank} had returned")
    return "\n".join(lines)
