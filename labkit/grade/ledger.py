"""What the journals say was sent, and whether they can be believed.

A journal is written on the rank that runs the code under test. So the driver holds three accounts
against each other: what the sender wrote down, what the receiver wrote down, and what the kernel
counted on the sockets. Faking all three takes more work than the exercise.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.comm.operation import Operation
from labkit.grade.evidence import Attempt, CaseEvidence
from labkit.grade.outcome import Finding, Outcome
from labkit.launch import sources

# gloo's messages on a rank's sockets, 48 bytes each: per send a notice and a header, per receive a
# notice. A collective on 4 ranks has 12 messages at most, each sent and another received; before
# each case the ranks meet in one.
_MESSAGE_BYTES = 200
_COLLECTIVE_BYTES = 12 * (2 * 48 + 48)


@dataclass(frozen=True, slots=True)
class Message:
    """One send, as the sender's journal has it. `peer`: the receiver."""

    peer: int
    payload_bytes: int


def sends(evidence: CaseEvidence) -> list[list[Message]]:
    """Every message of the case, by sender, in order."""
    return [_messages(evidence, rank, "send") for rank in range(evidence.world_size)]


def _messages(evidence: CaseEvidence, rank: int, kind: str) -> list[Message]:
    return [
        Message(operation.peer if operation.peer is not None else -1, operation.payload_bytes)
        for operation in evidence.operations[rank]
        if operation.kind == kind
    ]


def size_mismatch(evidence: CaseEvidence, outcome: Outcome) -> Finding | None:
    """A message that does not have the size of the buffer that it goes to.

    gloo ends the receiver's process where the message is longer, and says nothing where it is
    shorter: so this is looked for before anything that follows from it.
    """
    for receiver, operations in enumerate(evidence.operations):
        for recv in operations:
            if recv.kind != "recv" or recv.peer is None:
                continue
            send = _partner(recv, receiver, evidence.operations[recv.peer])
            if send is not None and send.payload_bytes != recv.payload_bytes:
                return Finding(
                    outcome,
                    "receives into a buffer of another size",
                    f"rank {recv.peer} sent {send.payload_bytes:,} bytes "
                    f"({sources.place(send.origin)}), and rank {receiver} receives them into a "
                    f"buffer of {recv.payload_bytes:,}: the two do not agree on which segment "
                    "this is. The buffer is as long as the segment that arrives, which need not "
                    "be as long as the one that is sent",
                    first_seen=f"{evidence.label}: rank {receiver}",
                    hint=2,
                    where=recv.origin,
                )
    return None


def _partner(recv: Operation, receiver: int, operations: Iterable[Operation]) -> Operation | None:
    """The send that fills a receive, if it was posted: messages keep their order."""
    for operation in operations:
        if (operation.kind, operation.peer) != ("send", receiver):
            continue
        if operation.sequence == recv.sequence:
            return operation
    return None


def disagreement(evidence: CaseEvidence) -> Finding | None:
    """Messages that only one of the two sides wrote down."""
    ranks = range(evidence.world_size)
    received = [_messages(evidence, rank, "recv") for rank in ranks]
    for source, sent in enumerate(sends(evidence)):
        for destination in ranks:
            ours = [m.payload_bytes for m in sent if m.peer == destination]
            theirs = [m.payload_bytes for m in received[destination] if m.peer == source]
            if ours != theirs:
                return Finding(
                    Outcome.WRONG,
                    "sender and receiver disagree",
                    f"rank {source} wrote down messages of {ours} bytes to rank {destination}, "
                    f"which wrote down {theirs}. Every send needs one receive of its size",
                    first_seen=evidence.label,
                    hint=2,
                )
    return None


def hidden_bytes(attempt: Attempt) -> Finding | None:
    """More on a rank's sockets than its journal accounts for. Linux only."""
    for rank, counted in enumerate(attempt.socket_bytes):
        operations = [op for case in attempt.cases for op in case.operations[rank]]
        journaled = sum(operation.sent_bytes for operation in operations)
        num_collectives = sum(operation.is_collective for operation in operations)
        overhead = _MESSAGE_BYTES * (len(operations) - num_collectives)
        overhead += _COLLECTIVE_BYTES * (num_collectives + len(attempt.cases) + 1)
        if counted is not None and counted > journaled + overhead:
            return Finding(
                Outcome.WRONG,
                "sends more than its journal says",
                f"rank {rank} sent {counted:,} bytes over its sockets, and its journal has "
                f"{journaled:,}. Send through `group` only",
                first_seen=f"{attempt.world_size} ranks, over all cases",
            )
    return None
