"""What collectives on shards send, as rings perform them.

gloo has no reduce-scatter and performs an all-reduce in its place; exercises count what a ring
would send, from the payloads in the journal.
"""

from collections.abc import Iterable
from typing import NamedTuple

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.outcome import Finding, Outcome

ROUNDED = (
    "loses digits on the way",
    "every number is nearly right, and float64 holds more digits: something was in a smaller dtype "
    "when it travelled, or when it was added up. That is compression, a decision of its own; here "
    "all tensors travel as they are",
)


class Why(NamedTuple):
    """A diagnosis of too many bytes, and what they come from."""

    name: str
    text: str


def over_budget(
    evidence: CaseEvidence, budget: int, sent: str, plainly: Why, all_reduced: Why
) -> Finding | None:
    """What the first rank that sends more than `budget` bytes does wrong, as rings would send.

    sent: "{bytes} in the words of the exercise, {budget}"; all_reduced: for whoever all-reduces.
    """
    for rank, operations in enumerate(evidence.operations):
        sent_bytes = ring_bytes(operations, evidence.world_size)
        if sent_bytes <= budget:
            continue
        reduced = next((each for each in operations if each.kind == "all_reduce"), None)
        why = plainly if reduced is None else all_reduced
        amounts = sent.format(bytes=f"{sent_bytes:,} bytes", budget=f"{budget:,}")
        return Finding(
            Outcome.OVER_BUDGET,
            why.name,
            f"on a ring rank {rank} sends {amounts}: {why.text}",
            first_seen=evidence.label,
            hint=1,
            where=(reduced or operations[-1]).origin,
        )
    return None


def shard_numel(numel: int, num_ranks: int) -> int:
    """Numbers in each rank's shard: an n-th, rounded up."""
    return -(-numel // num_ranks)


def ring_bytes(operations: Iterable[Operation], num_ranks: int) -> int:
    """Sent by one rank, rounded up to whole bytes for each operation."""
    return sum(_of_one(operation, num_ranks) for operation in operations)


def _of_one(operation: Operation, n: int) -> int:
    payload_bytes = operation.payload_bytes
    if operation.kind == "all_gather":
        return (n - 1) * payload_bytes
    times = {"all_reduce": 2, "reduce_scatter": 1}[operation.kind]
    return -(-times * (n - 1) * payload_bytes // n)
