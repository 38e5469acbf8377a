"""What gradients of ZeRO-2 take at the peak of memory, and what they send."""

from collections.abc import Sequence

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.shard_wire import Why, over_budget
from labkit.grade.graders.zero2_inputs import Given, budget_bytes
from labkit.grade.graders.zero2_watch import Seen, arrivals
from labkit.grade.outcome import Finding, Outcome

_ITEMSIZE = 8
# Of a bucket: activations of all layers, of a single example, and what an addition makes.
_ROOM = 0.5

_ADDS_UP = (
    "adds up microbatches before it reduces",
    "Gradients of several microbatches were added up on each rank, as ZeRO-1 does, and for "
    "that all of them must be there: each microbatch is reduced on its own",
)
_AT_THE_END = (
    "reduces only when backward is through",
    "The first collective begins after the last gradient is there, so all of them are in "
    "memory: reduce a bucket in the hook of the gradient that completes it",
)


def more_memory(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """More at the peak than segments and two buckets."""
    if evidence.world_size == 1:
        return None
    bucket_bytes = max(given.segment_numels) * evidence.world_size * _ITEMSIZE
    budget = budget_bytes(given.bucket_numels, evidence.world_size)
    for rank, each in enumerate(seen):
        if each.peak_bytes > budget + _ROOM * bucket_bytes:
            name, why = _why(evidence, given, each, rank, bucket_bytes)
            return Finding(
                Outcome.OVER_BUDGET,
                name,
                f"the values are right, and at the peak rank {rank} has {each.peak_bytes:,} bytes: "
                f"two buckets and the segments are {budget:,}, and all gradients "
                f"{sum(given.bucket_numels) * _ITEMSIZE:,}. {why}",
                first_seen=evidence.label,
                hint=1,
            )
    return None


def _why(
    evidence: CaseEvidence, given: Given, seen: Seen, rank: int, bucket_bytes: int
) -> tuple[str, str]:
    operations, per_pass = evidence.operations[rank], len(given.parameters)
    came = arrivals(evidence, rank)
    if len(came) < per_pass * given.num_microbatches:
        return (
            "gets all gradients at once",
            "Not every gradient has come to its parameter in a backward pass; where they come "
            "together, as torch.autograd.grad returns them, all of them are in memory",
        )
    if given.num_microbatches > 1 and operations[0].posted_s > came[per_pass].start_s:
        return _ADDS_UP
    if operations[0].posted_s > came[per_pass - 1].start_s:
        return _AT_THE_END
    if seen.most_gradient_bytes > 2 * bucket_bytes:
        return (
            "keeps gradients that are reduced already",
            f"The parameters' .grad have {seen.most_gradient_bytes:,} bytes together at one "
            "moment: what is in the flat tensor is still there a second time. Set .grad to None",
        )
    if seen.segment_storage_bytes > 1.5 * sum(given.segment_numels) * _ITEMSIZE:
        return (
            "keeps whole buckets for their segments",
            f"The segments that are returned lie in {seen.segment_storage_bytes:,} bytes: a view "
            "keeps all of the tensor that it is a view of. Copy the segment, and let the rest go",
        )
    return (
        "keeps more than two buckets",
        "A bucket is there twice while it moves into the tensor in which it travels, and then not "
        "at all: nothing but its segment stays, neither in a list nor in a name that lives on",
    )


def reduced_late(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Gradients that have not travelled when they should have, wherever they were meanwhile."""
    if evidence.world_size == 1:
        return None
    per_pass, times = len(given.parameters), given.num_microbatches
    # In the memory of two buckets one may wait for the next microbatch, and no more.
    waiting = (times - 1) * max(given.bucket_numels)
    needed_bytes = (times * sum(given.bucket_numels) - waiting) * _ITEMSIZE
    for rank, operations in enumerate(evidence.operations):
        reduced_bytes = sum(each.payload_bytes for each in operations)
        came = arrivals(evidence, rank)
        if reduced_bytes < needed_bytes:
            name, why = _ADDS_UP
        elif len(came) >= per_pass and operations[0].posted_s > came[per_pass - 1].start_s:
            name, why = _AT_THE_END
        else:
            continue
        return Finding(
            Outcome.OVER_BUDGET,
            name,
            f"the values are right, and rank {rank} hands {reduced_bytes:,} bytes to collectives, "
            f"where {times} times all gradients are "
            f"{times * sum(given.bucket_numels) * _ITEMSIZE:,}. {why}",
            first_seen=evidence.label,
            hint=1,
        )
    return None


def more_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    """More than a reduce-scatter of each bucket for each microbatch."""
    return over_budget(
        evidence,
        given.num_microbatches * (evidence.world_size - 1) * sum(given.segment_numels) * _ITEMSIZE,
        "{bytes}, and (n-1) k numbers for each bucket and microbatch are {budget}",
        Why(
            "sends more than the gradients",
            "each bucket travels once for each microbatch, with no more zeros than it takes",
        ),
        Why(
            "all-reduces the buckets",
            "an all_reduce gives all means to all ranks, each of which drops all but an nth: "
            "a reduce_scatter is the half of it that is needed",
        ),
    )
