"""Wrong sums of any all-reduce: the first wrong element, and mistakes that all can make."""

import torch

from labkit.grade.evidence import CaseEvidence

Tensor = torch.Tensor
Recognised = tuple[str, str, int]  # diagnosis, explanation, hint
_NEAR = 2**-7  # bfloat16's rounding of a few sums, relative to the largest
_BEYOND_CHANCE = 16


def average(outputs: list[Tensor], total: Tensor) -> Recognised | None:
    """Every element divided by the number of ranks."""
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


def loses_digits(outputs: list[Tensor], total: Tensor) -> Recognised | None:
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


def reads_too_early(outputs: list[Tensor]) -> Recognised | None:
    """NaN, which a buffer under way holds."""
    if not any(output.isnan().any() for output in outputs):
        return None
    return (
        "reads a buffer before its receive completed",
        "there is NaN in the result, and none in x. While a check runs, a buffer given to irecv "
        "holds NaN until its wait() returns: something read it before that",
        3,
    )


def first_wrong(
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
