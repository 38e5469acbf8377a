"""What ring attention has in memory at the peak, and what it computes."""

from collections.abc import Sequence

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.attention_work import outside_of_torch
from labkit.grade.graders.context_inputs import Given
from labkit.grade.graders.context_order import gathers_first
from labkit.grade.graders.context_watch import Seen
from labkit.grade.graders.context_work import RankWork
from labkit.grade.outcome import Finding, Outcome

_MOST_BLOCKS = 3
_MOST_RECEIVED = 2
_MOST_TENSORS = 8
# Of the products that are needed: a row of ones beside the values, scores that are computed twice.
_ROOM = 1.75


def more_memory(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """More blocks than two besides its own, or more numbers than one block's scores."""
    heads, longest = given.q[0].shape[0], max(given.sizes)
    block_bytes = max(given.block_bytes(rank) for rank in range(len(given.q)))
    scores_bytes = heads * longest**2 * given.q[0].element_size()
    budget = _MOST_BLOCKS * block_bytes + _MOST_TENSORS * scores_bytes
    for rank, each in enumerate(seen):
        if each.received_bytes > _MOST_RECEIVED * block_bytes:
            name, why = (
                "keeps blocks that it is done with",
                "a block that has been used and sent on is needed no more: no list, no buffer for "
                "the whole sequence",
            )
            amount = f"buffers of {each.received_bytes:,} bytes are there as it computes"
        elif each.peak_bytes > budget:
            name, why = (
                "holds more than one block's scores",
                "something is as long as the whole sequence, such as scores or masks of all "
                f"positions, or is kept of each block: the budget is {budget:,} bytes",
            )
            amount = f"there are {each.peak_bytes:,} bytes at the peak"
        else:
            continue
        if gathers_first(evidence, given, rank):
            name, why = (
                "gathers all blocks before it computes",
                "that is what an all-gather would do: memory grows with the sequence, and not with "
                "a rank's share of it",
            )
        return Finding(
            Outcome.OVER_BUDGET,
            name,
            f"the values are right, and on rank {rank} {amount}, where a block of keys and values "
            f"has {block_bytes:,}, and its scores {scores_bytes:,}: {why}",
            evidence.label,
            hint=1,
        )
    return None


def computes_outside(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Less than attention takes, as far as torch knows."""
    for rank in range(evidence.world_size):
        its = RankWork(evidence, given, rank)
        if not its.is_seen:
            return outside_of_torch(
                its.between(),
                its.needed(),
                f"{evidence.label}: rank {rank}",
                "the order of computing and communicating is part of the task",
            )
    return None


def more_computed(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Products for blocks that a rank sees nothing of."""
    heads, _, features = given.q[0].shape
    for rank in range(evidence.world_size):
        keys = sum(given.sizes[: rank + 1])
        needed = 4 * heads * features * given.sizes[rank] * keys
        flops = RankWork(evidence, given, rank).between().flops
        if flops > _ROOM * needed:
            return Finding(
                Outcome.OVER_BUDGET,
                "computes blocks that are wholly masked",
                f"the values are right, and rank {rank} computes {flops:,} FLOPs in products "
                f"of matrices, where its own block and those before it take {needed:,}: keys of "
                "later ranks get weights of 0, whatever they are. Send such blocks on, and leave "
                "them out of the computation",
                evidence.label,
                hint=2,
            )
    return None
