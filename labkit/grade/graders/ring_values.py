"""Wrong sums of a ring all-reduce, and the mistake that each kind of wrong sum comes from."""

import torch

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders import ring_provenance
from labkit.grade.graders.ring_inputs import expected_sum, is_wrong
from labkit.grade.graders.sums import (
    Recognised,
    average,
    first_wrong,
    loses_digits,
    reads_too_early,
)
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the sums, or None where all are right."""
    total, tolerance = expected_sum(evidence.case)
    outputs = [record.output for record in evidence.completed if record.output is not None]
    masks = [is_wrong(output, total, tolerance) for output in outputs]
    if not any(mask.any() for mask in masks):
        return None
    name, explanation, hint = (
        reads_too_early(outputs)
        or average(outputs, total)
        or loses_digits(outputs, total)
        or _ignores_remainder(masks)
        or _from_messages(evidence, masks)
        or ring_provenance.recognise(evidence, outputs)
        or ("wrong sum", "some elements are not the sum over all ranks", 2)
    )
    seen = first_wrong(evidence, outputs, masks, total)
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
        "through `group`, and none of these messages can be spared",
        first_seen=evidence.label,
        hint=1,
    )


def _ignores_remainder(masks: list[Tensor]) -> Recognised | None:
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


def _from_messages(evidence: CaseEvidence, masks: list[Tensor]) -> Recognised | None:
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
