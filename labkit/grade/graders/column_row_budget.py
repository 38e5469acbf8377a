"""What a tensor-parallel MLP communicates: one all-reduce of B T D numbers in each direction."""

from collections.abc import Sequence

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.column_row_inputs import Given
from labkit.grade.graders.column_row_watch import passes
from labkit.grade.outcome import Finding, Outcome

_ITEMSIZE = 8
_BETWEEN = (
    "communicates between the layers",
    "its size is that of hidden features. down needs from a rank what up has made there: whoever "
    "splits up by columns and down by rows needs no other rank's features in between",
)


def more_communication(evidence: CaseEvidence, given: Given) -> Finding | None:
    """What the first rank with more than one all-reduce forward, or backward, does."""
    for rank in range(evidence.world_size):
        for direction, operations in zip(
            ("forward", "backward"), passes(evidence, rank), strict=True
        ):
            why = _why(operations, direction, given, evidence.world_size)
            if why is None:
                continue
            name, explanation = why
            sizes = ", ".join(f"{each.kind} of {each.payload_bytes:,}" for each in operations)
            return Finding(
                Outcome.OVER_BUDGET,
                name,
                f"the values are right, and {direction} rank {rank} makes {sizes} bytes: one "
                f"all_reduce of B T D numbers has {given.x.nbytes:,}. {explanation}",
                first_seen=evidence.label,
                hint=1,
                where=operations[-1].origin,
            )
    return None


def less_communication(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Right values, and less was summed than y, or than x's gradient."""
    if evidence.world_size == 1:
        return None
    for rank in range(evidence.world_size):
        for direction, operations in zip(
            ("forward", "backward"), passes(evidence, rank), strict=True
        ):
            passed_bytes = sum(each.payload_bytes for each in operations)
            if passed_bytes < given.x.nbytes:
                return Finding(
                    Outcome.WRONG,
                    "less travels than y and its gradient",
                    f"the values are right, and {direction} rank {rank} hands {passed_bytes:,} "
                    f"bytes to collectives: a sum of B T D numbers takes {given.x.nbytes:,}. What "
                    "the other ranks' features add came another way; ranks talk through the "
                    "group's collectives",
                    first_seen=evidence.label,
                    hint=1,
                )
    return None


def _why(
    operations: Sequence[Operation], direction: str, given: Given, n: int
) -> tuple[str, str] | None:
    """Name and explanation, where it is more than one all-reduce of that size."""
    sizes = [each.payload_bytes for each in operations]
    gathered = [each.payload_bytes for each in operations if each.kind == "all_gather"]
    if not gathered and len(sizes) <= 1 and sum(sizes) <= given.x.nbytes:
        return None
    if any(size in _hidden_bytes(given, n) for size in sizes):
        return _BETWEEN
    if gathered:
        return _of_gathers(gathered, given, n)
    if sum(sizes) == given.x.nbytes:
        return (
            "splits the all-reduce",
            "The bytes are right, and each of the calls pays the latency of 2 (n-1) messages, "
            "which for activations of this size is most of the time: hand over the whole tensor",
        )
    if len(sizes) > 1:
        return (
            f"more than one all-reduce {direction}",
            "It stands on the critical path, where nothing overlaps with it: sum once, where a sum "
            "over all features is needed, and nothing that is the same on all ranks already",
        )
    return (
        "all-reduces more than B T D numbers",
        "What is summed is a partial result of y, or of x's gradient, and nothing else",
    )


def _of_gathers(gathered: Sequence[int], given: Given, n: int) -> tuple[str, str]:
    if given.x.nbytes in gathered:
        return (
            "gathers partial results instead of reducing them",
            f"Each rank gets {n} tensors of B T D numbers and adds them up: on a ring it sends n-1 "
            "times its own, where an all_reduce sends 2 (n-1)/n times, and it needs n times the "
            "memory",
        )
    return (
        "gathers the weights",
        "Weights stay where they are, and activations travel. (Gathering weights is ZeRO-3, and "
        "every rank then computes with all of them)",
    )


def _hidden_bytes(given: Given, n: int) -> set[int]:
    """Of hidden features: all of them, a rank's, and as many as the longest share has."""
    tokens = given.x.shape[0] * given.x.shape[1]
    widths = {given.num_features, -(-given.num_features // n)}
    widths |= {len(share[1]) for share in given.shares}
    return {tokens * width * _ITEMSIZE for width in widths if width}
