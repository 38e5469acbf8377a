"""A run that does not end, as a finding: who waits for what, and why it cannot come."""

import dataclasses

from labkit.comm.operation import Operation
from labkit.grade import own_code
from labkit.grade.evidence import Attempt, CaseEvidence
from labkit.grade.mismatch import not_all_call
from labkit.grade.outcome import Finding, Outcome
from labkit.launch import sources
from labkit.launch.errors import RunError
from labkit.launch.waiting import blocked_in

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


def explain_hang(attempt: Attempt, evidence: CaseEvidence | None, failure: RunError) -> Finding:
    """Names the wait, from where every rank was when the run was ended.

    `evidence`: the case that did not end; None while the code was loading.
    """
    if evidence is None:
        ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
        details = own_code.of_stack(failure.stacks[0])
        return Finding(Outcome.HUNG, "does not finish loading", _LOADING, ranks, 1, None, details)
    stuck = [rank for rank in range(attempt.world_size) if not evidence.has_returned(rank)]
    waits = {rank: blocked_in(failure.timeline[rank].operations) for rank in stuck}
    blocked = {rank: operation for rank, operation in waits.items() if operation is not None}
    busy = [rank for rank in stuck if rank not in blocked]
    kinds = {operation.kind for operation in blocked.values()}
    everyone = len(blocked) == attempt.world_size
    where = None
    if busy:
        name = "loops without communicating"
        explanation = (
            f"rank {busy[0]} neither returns nor communicates: it computes, sleeps or loops. "
            "The other ranks can only wait for it"
        )
        where = own_code.site_in_stack(failure.stacks[busy[0]])
    elif everyone and kinds == {"send"}:
        name, explanation = "every rank is in send: nobody receives", _ALL_SEND
        where = blocked[0].origin
    elif everyone and kinds == {"recv"}:
        name, explanation = "every rank is in recv: nobody sends", _ALL_RECEIVE
        where = blocked[0].origin
    elif any(operation.is_collective for operation in blocked.values()) and not everyone:
        alone = {r: operation for r, operation in blocked.items() if operation.is_collective}
        finding = not_all_call(evidence, alone)
        details = _positions(blocked, busy, evidence, failure)
        return dataclasses.replace(finding, first_seen=evidence.label, details=details)
    else:
        rank = _most_telling(blocked, evidence)
        where = blocked[rank].origin
        partner = "sends" if blocked[rank].kind == "recv" else "receives"
        name = f"waits for a message that nobody {partner}"
        explanation = _one_sided(rank, blocked[rank], evidence)
    details = _positions(blocked, busy, evidence, failure)
    return Finding(Outcome.HUNG, name, explanation, evidence.label, 3, where, details)


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
        "both, and compare whom each of them names as its neighbour"
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
            lines += [f"rank {rank} was here:", own_code.of_stack(failure.stacks[rank])]
        else:
            lines.append(f"rank {rank} had returned")
    return "\n".join(lines)
