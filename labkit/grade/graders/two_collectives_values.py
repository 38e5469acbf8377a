"""Wrong sums of an all-reduce that is made of two collectives, and the mistakes behind them."""

from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import differ_in_one_element, is_same
from labkit.grade.graders.ring_inputs import expected_sum, is_wrong
from labkit.grade.graders.sums import Recognised, average, first_wrong, loses_digits
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor


def wrong_form(evidence: CaseEvidence) -> Finding | None:
    """No tensor, or one of another shape or dtype; where the padding is to blame, by that name."""
    x, n = evidence.case.arguments[0][0], evidence.world_size
    for rank, record in enumerate(evidence.completed):
        output, found = record.output, None
        if output is None or output.shape == x.shape:
            continue
        if x.numel() % n and output.numel() == x.numel() + -x.numel() % n:
            found = (
                "returns the padding, too",
                f"the result has {output.numel()} elements, and x has {x.numel()}: the rest is "
                "what you added so that n divides the size. Cut it off again",
            )
        if x.numel() % n and output.numel() == x.numel() // n * n:
            found = _dropped(x.numel(), n)
        if found is not None:
            seen = f"{evidence.label}: rank {rank}"
            return Finding(Outcome.WRONG, *found, first_seen=seen, hint=2)
    return diagnosis.result_form(evidence, x.shape, x.dtype)


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the sums, or None where all are right."""
    total, tolerance = expected_sum(evidence.case)
    outputs = _outputs(evidence)
    masks = [is_wrong(output, total, tolerance) for output in outputs]
    if not any(mask.any() for mask in masks):
        return None
    name, explanation, hint = (
        average(outputs, total)
        or loses_digits(outputs, total)
        or _drops_the_remainder(masks)
        or _padding_inside(outputs, total)
        or _gathers_x(evidence, outputs)
        or ("wrong sum", "some elements are not the sum over all ranks", 2)
    )
    seen = first_wrong(evidence, outputs, masks, total)
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def not_from_collectives(evidence: CaseEvidence) -> Finding | None:
    """Sums that are right although one rank's part was changed on its way, or None.

    One more in the first element of what a rank passes to the reduce_scatter is one more in one
    element of the result. What it passes to the all_gather may be a view in another dtype, bytes
    for example: there it is another element of the result, whichever. On all ranks it is the same.
    """
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    outputs = _outputs(evidence)
    total, _ = expected_sum(evidence.case)
    right = total.to(outputs[0].dtype)  # exact: whole numbers
    change = (outputs[0].to(total.dtype) - total).flatten()
    is_one_more = number == 2 or bool(change.abs().sum() == change.sum() == 1)
    if (
        is_one_more
        and differ_in_one_element(outputs[0], right)
        and all(is_same(output, outputs[0]) for output in outputs)
    ):
        return None
    return Finding(
        Outcome.WRONG,
        "the result does not come from the collectives",
        f"one was added to the first element of what rank {rank} passes to collective {number} of "
        "the two, and it does not show as it should, in one element of the result and on every "
        "rank the same: what a rank returns is not what the all_gather of the reduce_scatter gave "
        "it, but was learned in another way",
        first_seen=evidence.label,
        hint=1,
    )


def _outputs(evidence: CaseEvidence) -> list[Tensor]:
    """By rank; their form has been looked at before."""
    return [record.output for record in evidence.completed if record.output is not None]


def _dropped(numel: int, n: int) -> tuple[str, str]:
    left = numel % n
    return (
        "drops the remainder",
        f"{numel} elements over {n} ranks are {numel // n} each, and {left} left over, and just "
        "those are not in the sum. Add zeros until n divides the size, and cut them off at the end",
    )


def _drops_the_remainder(masks: Sequence[Tensor]) -> Recognised | None:
    n, numel = len(masks), masks[0].numel()
    covered = n * (numel // n)
    if covered == numel or any(mask[:covered].any() for mask in masks):
        return None
    return (*_dropped(numel, n), 2)


def _padding_inside(outputs: Sequence[Tensor], total: Tensor) -> Recognised | None:
    """Sums that are right but lie where they would lie if something else had been padded."""
    n, flat = len(outputs), total.flatten()
    for places in _misplaced(flat.numel(), n):
        is_sum = places >= 0
        wanted = flat[places[is_sum]]
        got = [output.flatten()[is_sum].to(wanted.dtype) for output in outputs]
        if flat.numel() > n and all(torch.equal(each, wanted) for each in got):
            place = int(is_sum.logical_not().nonzero()[0])
            return (
                "the padding ends up inside the result",
                "the sums are right, and lie in the wrong places: what is added to make n divide "
                f"the size comes out in the middle, at index {place} first. Pad the flattened x "
                "once, at its end, and cut the end off the gathered result: all that was added "
                "lies there",
                2,
            )
    return None


def _misplaced(numel: int, n: int) -> list[Tensor]:
    """Which element lies at which place of the result, by mistake; -1: what was added."""
    if numel % n == 0:
        return []
    length = -(-numel // n)
    sizes = [part.numel() for part in torch.empty(numel).tensor_split(n)]
    parts = torch.arange(numel).tensor_split(n)
    filler = torch.full((length,), -1)
    each_padded = torch.cat([torch.cat([part, filler])[:length] for part in parts])[:numel]
    at_the_front = torch.cat([filler[:0].new_full((-numel % n,), -1), torch.arange(numel)])[:numel]
    padded = torch.cat([torch.arange(numel), filler[:0].new_full((-numel % n,), -1)])
    each_cut = torch.cat(
        [block[:size] for block, size in zip(padded.tensor_split(n), sizes, strict=True)]
    )
    return [each_padded, at_the_front, each_cut]


def _gathers_x(evidence: CaseEvidence, outputs: Sequence[Tensor]) -> Recognised | None:
    """Each rank's own part of its x, instead of that part of the sum."""
    inputs = [arguments[0].flatten() for arguments in evidence.case.arguments]
    n = len(inputs)
    if n == 1 or inputs[0].numel() % n:
        return None
    parts = torch.cat([x.tensor_split(n)[rank] for rank, x in enumerate(inputs)])
    if not all(torch.equal(output.flatten(), parts) for output in outputs):
        return None
    return (
        "gathers x, and not the sums",
        "segment r of the result is rank r's own x: what goes into the all_gather is a part of x. "
        "reduce_scatter leaves its argument alone and returns the sums; gather those",
        2,
    )
