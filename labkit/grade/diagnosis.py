"""Mistakes that any exercise can meet, recognised in the evidence of one case."""

from collections.abc import Sequence

import torch

from labkit.comm.operation import Site
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import is_same
from labkit.grade.outcome import Finding, Outcome

_RULES = {
    "ForbiddenOperation": ("calls a library collective", 1),
    "CalledTheAnswer": ("calls the answer itself", 1),
    "LookedItUp": ("calls the answer itself", 1),
    "StoppedTheWatch": ("switches off the watch", 1),
    "ChangedInFlight": ("the tensor you sent changed before the send completed", 3),
    "WrittenWhileReceiving": ("the buffer changed before its receive completed", 3),
    "NeverWaited": ("never waits for an operation", 3),
}


def broken_rule(evidence: CaseEvidence) -> Finding | None:
    """An operation that the watched group or the gate refused, on the first rank that has one."""
    for rank, record in enumerate(evidence.records):
        if record is not None and record.broken_rule:
            diagnosis, hint = _RULES[record.broken_rule]
            return Finding(
                Outcome.WRONG,
                diagnosis,
                record.rule_message,
                first_seen=f"{evidence.label}: rank {rank}",
                hint=hint,
                where=Site(*record.rule_site),
            )
    return None


def unlisted_operation(evidence: CaseEvidence, allowed: Sequence[str]) -> Finding | None:
    """An operation in a journal that the exercise does not allow, however it got there."""
    kinds = {name.removeprefix("i") for name in allowed}
    for rank, operations in enumerate(evidence.operations):
        for operation in operations:
            if operation.kind not in kinds:
                return Finding(
                    Outcome.WRONG,
                    "calls a library collective",
                    f"the journal of rank {rank} has {operation.name} in it; this exercise is "
                    f"written with {', '.join(allowed)} and nothing else",
                    first_seen=evidence.label,
                    where=operation.origin,
                )
    return None


def result_form(
    evidence: CaseEvidence, shape: torch.Size, dtype: torch.dtype, hint: int = 3
) -> Finding | None:
    """A result that is no tensor, or one of another shape or dtype than it should be."""
    for rank, record in enumerate(evidence.completed):
        output, seen = record.output, f"{evidence.label}: rank {rank}"
        if output is None:
            is_none = record.output_type == "NoneType"
            diagnosis = "returns nothing" if is_none else "returns something that is no tensor"
            explanation = (
                "the function ends without a return, so its value is None"
                if is_none
                else f"the function returns a {record.output_type}; it should be a dense tensor "
                "on the CPU"
            )
        elif output.shape != shape:
            diagnosis = "returns another shape"
            explanation = (
                f"the result has shape {tuple(output.shape)}; the contract is x's own shape, "
                f"{tuple(shape)}"
            )
        elif output.dtype != dtype:
            diagnosis = "returns another dtype"
            explanation = f"the result is {output.dtype}; the contract is x's own, {dtype}"
        else:
            continue
        return Finding(Outcome.WRONG, diagnosis, explanation, first_seen=seen, hint=hint)
    return None


def input_changed(evidence: CaseEvidence, hint: int = 3) -> Finding | None:
    """An argument that is not what it was."""
    for rank, record in enumerate(evidence.completed):
        given = [x for x in evidence.case.arguments[rank] if isinstance(x, torch.Tensor)]
        for before, after in zip(given, record.arguments, strict=True):
            if not is_same(before, after):
                return Finding(
                    Outcome.WRONG,
                    "changes its input",
                    "the result is right, but x is not what it was before the call: whoever "
                    "still needs it, has lost it. Work on a copy (flatten() of a contiguous "
                    "tensor is not one, and neither is a slice)",
                    first_seen=f"{evidence.label}: rank {rank}",
                    hint=hint,
                )
    return None


def result_returned_before(evidence: CaseEvidence, hint: int = 3) -> Finding | None:
    """A result in the memory of an earlier one."""
    for rank, record in enumerate(evidence.completed):
        if record.returned_before:
            return Finding(
                Outcome.WRONG,
                "returns the same memory again",
                "the result lies in the memory of one that an earlier call returned, so whoever "
                "kept that one now has this one's values. The contract is a new tensor: keep "
                "buffers between calls if you like, but return a copy of them",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=hint,
            )
    return None


def result_shares_memory(evidence: CaseEvidence, hint: int = 3) -> Finding | None:
    """A result that is an argument, or a view of one."""
    for rank, record in enumerate(evidence.completed):
        if record.shares_memory:
            return Finding(
                Outcome.WRONG,
                "returns its own input",
                "the result lies in x's own memory. The contract is a new tensor: a caller who "
                "writes to the result would change x with it. It is easily forgotten where "
                "there is nothing to add, as with one rank",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=hint,
            )
    return None
