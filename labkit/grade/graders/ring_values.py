"""Wrong sums of a ring all-reduce, and the mistake that each kind of wrong sum comes from."""

import torch

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders import ring_provenance
from labkit.grade.graders.ring_inputs import expected_sum, is_wrong
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor
_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint
_NEAR = 2**-7  # bfloat16's rounding of a few sums, relative to the largest
_BEYOND_CHANCE = 16


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the sums, or None where all are right."""
    total, tolerance = expected_sum(evidence.case)
    outputs = [record.output for record in evidence.completed if record.output is not None]
    masks = [is_wrong(output, total, tolerance) for output in outputs]
    if not any(mask.any() for mask in masks):
        return None
    name, explanation, hint = (
        _reads_too_early(outputs)
        or _average(outputs, total)
        or _loses_digits(outputs, total)
        or _ignores_remainder(masks)
        or _from_messages(evidence, masks)
        or ring_provenance.recognise(evidence, outputs)
        or ("wrong sum", "some elements are not the sum over all ranks", 2)
    )
    seen = _first_wrong(evidence, outputs, masks, total)
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def not_from_messages(evidence: CaseEvidence) -> Finding | None:
    """Sums that are right although a message was changed on its way, or None.

    Each of the 2(n-1) messages that a rank receives in a ring is needed for some sum.
    """
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    total, tolerance = expected_sum(evidence.case)
    for record in evidence.completed:
        output = record.output
        if output is None or output.shape != total.shape:
            return None
        if is_wrong(output, total, tolerance).any():
            return None
    return Finding(
        Outcome.WRONG,
        "the result does not come from the messages",
        f"one was added to the first element of message {number} that rank {rank} receives, and "
        "no rank's result is another one for it: the message is not used, and what the others "
        "hold was learned in another way. Everything that a rank knows of the others comes to it "
        "through `group`, and no message of a ring can be spared",
        first_seen=evidence.label,
        hint=1,
    )


def _first_wrong(
    evidence: CaseEvidence, outputs: list[Tensor], masks: list[Tensor], total: Tensor
) -> str:
    """`3 ranks, 12 float32 elements: rank 1, index 4: got 12, expected 17 (8 of 12 ...)`"""
    rank = next(rank for rank, mask in enumerate(masks) if mask.any())
    index = int(masks[rank].nonzero()[0])
    got, wanted = outputs[rank].flatten()[index].item(), total.flatten()[index].item()
    values = f"got {_digits(got)}, expected {_digits(wanted)}"
    count = f"{int(masks[rank].sum())} of {masks[rank].numel()} elements are wrong on this rank"
    return f"{evidence.label}: rank {rank}, index {index}: {values} ({count})"


def _digits(value: complex) -> str:
    """Whole numbers in full: a wrong one may differ in its last digit only."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return f"{value:.0f}" if is_whole else f"{value:.7g}"


def _reads_too_early(outputs: list[Tensor]) -> _Recognised | None:
    if not any(output.isnan().any() for output in outputs):
        return None
    return (
        "reads a buffer before its receive completed",
        "there is NaN in the result, and none in x. While a check runs, a buffer given to irecv "
        "holds NaN until its wait() returns: something read it before that",
        3,
    )


def _average(outputs: list[Tensor], total: Tensor) -> _Recognised | None:
    n = len(outputs)
    mean = total / n
    near = [(output.to(mean.dtype) - mean).abs() <= 0.01 * mean.abs() for output in outputs]
    if n == 1 or not total.any() or not all(mask.all() for mask in near):
        return None
    return (
        "an average instead of a sum",
        f"every element is 1/{n} of the sum. The contract is the sum: a caller who wants the mean "
        "divides, and one who wants the sum cannot undo a division of integers",
        1,
    )


def _loses_digits(outputs: list[Tensor], total: Tensor) -> _Recognised | None:
    """Everything nearly right, in a number of elements that rules out chance."""
    wide = total.to(torch.complex128 if total.is_complex() else torch.float64)
    near = _NEAR * wide.abs().max() if total.numel() else torch.tensor(0.0)
    if total.numel() < _BEYOND_CHANCE or not all(
        ((output.to(wide.dtype) - wide).abs() <= near).all() for output in outputs
    ):
        return None
    return (
        "loses digits on the way",
        f"every sum is nearly right, and x's own dtype, {outputs[0].dtype}, holds all of them "
        "exactly: they were added, or passed on, in a dtype that does not, such as integers as "
        "floating-point numbers. Make buffers with empty_like or new_empty, and convert nothing",
        3,
    )


def _ignores_remainder(masks: list[Tensor]) -> _Recognised | None:
    n, numel = len(masks), masks[0].numel()
    covered = n * (numel // n)
    if covered == numel or any(mask[:covered].any() for mask in masks):
        return None
    return (
        "ignores the remainder of an uneven size",
        f"{numel} elements over {n} ranks are {n} segments of {numel // n} and {numel - covered} "
        "left over, and just those are wrong. `numel // n` forgets them; torch.tensor_split makes "
        "the first segments one longer",
        3,
    )


def _from_messages(evidence: CaseEvidence, masks: list[Tensor]) -> _Recognised | None:
    """Mistakes that the number of messages gives away."""
    n = evidence.world_size
    counts = {len(messages) for messages in ledger.sends(evidence)}
    if n == 1 or len(counts) > 1:
        return None
    (count,) = counts
    if count == 0:
        return ("nothing is sent", "no rank can know what the others hold", 1)
    if count == n - 1 and _each_has_another_segment(masks):
        return (
            "the all-gather phase is missing",
            f"after {n - 1} steps every rank has one complete segment, each another one. That is "
            f"a reduce-scatter; {n - 1} more steps hand the complete segments around",
            1,
        )
    if count < 2 * (n - 1):
        return (
            "a step too few",
            f"every rank sends {count} messages. It takes {n - 1} steps until a segment has met "
            f"all {n} ranks, and {n - 1} more until every rank has it: {2 * (n - 1)}",
            3,
        )
    if count > 2 * (n - 1):
        return (
            "a step too many",
            f"every rank sends {count} messages, and {2 * (n - 1)} are enough: after {n - 1} "
            "steps of adding, a segment is complete, and one more adds a contribution twice",
            3,
        )
    return None


def _each_has_another_segment(masks: list[Tensor]) -> bool:
    """Whether each rank has just one right segment, and no two the same."""
    right = [
        [number for number, part in enumerate(mask.tensor_split(len(masks))) if not part.any()]
        for mask in masks
    ]
    return sorted(right) == [[number] for number in range(len(masks))]
