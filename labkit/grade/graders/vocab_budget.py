"""What a loss over a split vocabulary may send, and how large its tensors may be."""

from collections.abc import Sequence

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.vocab_inputs import Given, Seen
from labkit.grade.outcome import Finding, Outcome

_ITEMSIZE = 4
_NUM_NUMBERS = _NUM_COLLECTIVES = 3
_ROOM = 1.25  # times a share: a column more, such as a 0 for whoever is not here


def more_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    """More than three numbers for each position, or more than three collectives."""
    if evidence.world_size == 1:
        return None
    num_positions = len(given.targets_N)
    budget_bytes = _NUM_NUMBERS * num_positions * _ITEMSIZE
    for rank, operations in enumerate(evidence.operations):
        passed_bytes = sum(each.payload_bytes for each in operations)
        if passed_bytes > budget_bytes:
            largest = max(operations, key=lambda each: each.payload_bytes)
            name, why = _too_many_bytes(largest, given, rank)
            said = (
                f"rank {rank} passes {passed_bytes:,} bytes to collectives; 3 float32 numbers for "
                f"each of {num_positions} positions are {budget_bytes:,}. {why}"
            )
            return _over(evidence, name, said, largest)
        if len(operations) > _NUM_COLLECTIVES:
            said = (
                f"rank {rank} calls {len(operations)} collectives, and "
                f"{_NUM_COLLECTIVES} are enough: a maximum, a sum and a logit of each position. "
                "Each costs a latency, however short it is; positions travel side by side"
            )
            name = "calls more than three collectives"
            return _over(evidence, name, said, operations[_NUM_COLLECTIVES])
    return None


def less_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Right values, and less was handed over than a sum of exp for each position."""
    if evidence.world_size == 1:
        return None
    least_bytes = len(given.targets_N) * _ITEMSIZE
    for rank, operations in enumerate(evidence.operations):
        # No sum over the ranks comes of maxima.
        passed_bytes = sum(each.payload_bytes for each in operations if not is_of_extremes(each))
        if passed_bytes < least_bytes:
            return Finding(
                Outcome.WRONG,
                "less travels than a sum for each position",
                f"the values are right, and what rank {rank} hands to sums and gathers is "
                f"{passed_bytes:,} bytes: a sum of exp for each of {len(given.targets_N)} "
                f"positions is {least_bytes:,}. Nobody knows the other shares without that, so "
                "they came another way; ranks talk through the group's collectives",
                evidence.label,
                hint=1,
            )
    return None


def is_of_extremes(operation: Operation) -> bool:
    """Whether it is a maximum, or a minimum as of -x."""
    return operation.reduce in ("max", "min")


def _too_many_bytes(largest: Operation, given: Given, rank: int) -> tuple[str, str]:
    share = given.shares[rank]
    numel = 1
    for size in largest.shape:
        numel *= size
    if largest.kind == "all_gather" and 2 * numel >= share.numel():
        return (
            "gathers the logits",
            "What travels grows with the vocabulary, and every rank then has all of it: of a "
            "share, softmax needs its maximum and its sum of exp, and nothing else of the others",
        )
    if largest.kind == "all_reduce" and 2 * numel >= share.numel():
        return (
            "reduces what is as long as the vocabulary",
            "What travels grows with the vocabulary. Reduce over this rank's tokens first: a "
            "number for each position is left",
        )
    return (
        "passes more than three numbers for each position",
        "A maximum, a sum and a logit of each position are needed, in float32",
    )


def larger_tensors(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """A tensor that is longer than a share."""
    n, num_positions = evidence.world_size, len(given.targets_N)
    # Shares of a few tokens are no longer than what three numbers of each rank take.
    if n == 1 or given.share_numel < _NUM_NUMBERS * n * num_positions * _ROOM:
        return None
    for rank, each in enumerate(seen):
        if each.largest_numel > _ROOM * given.share_numel:
            is_all = each.largest_numel >= given.logits_NV.numel()
            return _over(
                evidence,
                "makes room for the whole vocabulary" if is_all else "has a tensor above a share",
                f"the values are right, and rank {rank} makes a tensor of {each.largest_numel:,} "
                f"numbers, where the largest share has {given.share_numel:,}. With 128,256 tokens "
                "and 32,768 positions all logits are 16.8 GB in float32: zeros and -inf take as "
                "much room as numbers do. Compute with this rank's columns only",
                None,
            )
    return None


def _over(evidence: CaseEvidence, name: str, why: str, operation: Operation | None) -> Finding:
    where = None if operation is None else operation.origin
    return Finding(Outcome.OVER_BUDGET, name, why, evidence.label, hint=1, where=where)
