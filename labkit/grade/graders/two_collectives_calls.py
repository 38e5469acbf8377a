"""The collectives of an all-reduce that is made of two: one reduce_scatter, one all_gather, and
in each no more than x, padded to the next multiple of n.
"""

from collections import Counter

import torch

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.outcome import Finding, Outcome

_BOTH = ("reduce_scatter", "all_gather")
_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def missing_call(evidence: CaseEvidence) -> Finding | None:
    """One of the two, or both, not called: the sums cannot be right, or cost too much."""
    kinds = {operation.kind for operation in evidence.operations[0]}
    if may_be_skipped(evidence) or kinds.issuperset(_BOTH):
        return None
    if not kinds:
        found = ("nothing is sent", "no rank can know what the others hold")
    elif "all_gather" in kinds:
        found = (
            "gathers everything, then adds",
            "there is no reduce_scatter: every rank receives n - 1 whole tensors, where 2(n-1)/n "
            "of one are enough, and all ranks do the same adding",
        )
    else:
        found = (
            "the all-gather is missing",
            "after the reduce_scatter each rank has one nth of the sum, each another one; an "
            "all_gather gives all of it to all",
        )
    return Finding(Outcome.WRONG, *found, first_seen=evidence.label, hint=1)


def may_be_skipped(evidence: CaseEvidence) -> bool:
    """Whether there is nothing to communicate: one rank, or no elements."""
    x: torch.Tensor = evidence.case.arguments[0][0]
    return evidence.world_size == 1 or not x.numel()


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """More calls than one of each, or more bytes in them than x, padded, has."""
    x, n = evidence.case.arguments[0][0], evidence.world_size
    segment_bytes = -(-x.numel() // n) * x.element_size()
    budget = {"reduce_scatter": n * segment_bytes, "all_gather": segment_bytes}
    for rank, operations in enumerate(evidence.operations):
        counts = Counter(operation.kind for operation in operations)
        for operation in operations:
            found = None
            if counts[operation.kind] > 1:
                found = _too_many_calls(operation.kind, counts[operation.kind])
            elif operation.payload_bytes > budget[operation.kind]:
                found = _too_many_bytes(operation, budget[operation.kind], x, n)
            if found is not None:
                name, explanation, hint = found
                seen = f"{evidence.label}: rank {rank}"
                where = operation.origin
                return Finding(Outcome.OVER_BUDGET, name, explanation, seen, hint, where)
    return None


def _too_many_calls(kind: str, count: int) -> _Recognised:
    return (
        "more than one of each",
        f"{count} calls of {kind}; one is enough for any size. What is left over where n does not "
        "divide the size travels with the rest, in a tensor that is padded to the next multiple "
        "of n",
        2,
    )


def _too_many_bytes(operation: Operation, most: int, x: torch.Tensor, n: int) -> _Recognised:
    its, numel = operation.payload_bytes, x.numel()
    dtype = str(x.dtype).removeprefix("torch.")  # as journals have it
    what = f"{operation.kind} gets {its:,} bytes; {most:,} are due"
    if operation.dtype != dtype:
        return (
            "travels in another dtype",
            f"{what}: what is sent is {operation.dtype}, and x is {dtype}. Send x as it is",
            3,
        )
    if operation.kind == "all_gather":
        return (
            "gathers more than one nth",
            f"{what}. A rank passes on the nth of the sum that is complete on it, and no more",
            1,
        )
    passed = its // x.element_size()
    if numel % n == 0 and passed == numel + n:
        return (
            "pads where nothing is left over",
            f"{what}: n = {n} divides {numel}, and yet {n} elements are added. n - numel % n is n "
            "where numel % n is 0; -numel % n is 0 there, and otherwise the same",
            3,
        )
    if x.dim() > 1 and passed == -(-x.shape[0] // n) * n * x[0].numel():
        return (
            "pads whole rows",
            f"{what}: {passed - numel} elements are added to x of shape {tuple(x.shape)}, whole "
            f"rows of {x[0].numel()}. Flatten first, and never are there more than n - 1",
            2,
        )
    return (
        "pads too much",
        f"{what}: {passed - numel} elements are added to {numel}. Up to the next multiple of {n} "
        f"there are {-numel % n}",
        2,
    )
