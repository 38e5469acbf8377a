"""Outputs and gradients of a tensor-parallel MLP, and the mistake that explains what is wrong."""

from collections.abc import Sequence

from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.column_row_gradients import wrong_gradients
from labkit.grade.graders.column_row_inputs import NAMES, Given, Whole
from labkit.grade.graders.column_row_outputs import wrong_outputs
from labkit.grade.graders.column_row_watch import Seen
from labkit.grade.graders.gradient_values import is_close, is_nearly, shown
from labkit.grade.graders.shard_wire import ROUNDED
from labkit.grade.outcome import Finding, Outcome


def wrong_values(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """The output, then gradients, held against those of one process with the whole MLP."""
    whole = given.expected()
    return _wrong_y(evidence, given, whole.y, seen) or _wrong_gradient(evidence, given, whole, seen)


def _wrong_y(
    evidence: CaseEvidence, given: Given, y: Tensor, seen: Sequence[Seen]
) -> Finding | None:
    """An output that is not the whole MLP's, by the mistake that explains it on all ranks."""
    wrong = [rank for rank, each in enumerate(seen) if not is_close(each.y, y)]
    if not wrong:
        return None
    values = f"got {shown(seen[wrong[0]].y)}, expected {shown(y)}"
    where = f"{evidence.label}: y on rank {wrong[0]}: {values}"
    for each in wrong_outputs(given):
        if all(is_close(its.y, each.y(rank)) for rank, its in enumerate(seen)):
            return Finding(Outcome.WRONG, each.name, each.explanation, where, each.hint)
    if all(is_nearly(each.y, y) for each in seen):
        return Finding(Outcome.WRONG, *ROUNDED, where, 2)
    return Finding(
        Outcome.WRONG,
        "another output than the MLP's",
        "y = down(gelu(up(x))): each rank computes up's features of its share, GELU of them, and "
        "what they add to y; the sum over the ranks, and the bias once, is y",
        where,
        2,
    )


def _wrong_gradient(
    evidence: CaseEvidence, given: Given, whole: Whole, seen: Sequence[Seen]
) -> Finding | None:
    """Gradients that are not the whole MLP's, by the mistake that explains them on all ranks."""
    n = len(seen)
    right = [given.share_of(whole.gradients, rank) for rank in range(n)]
    for gradients in right:
        gradients[0] = gradients[0] + given.output_gradient
    wrong = [
        (rank, index)
        for rank, each in enumerate(seen)
        for index, expected in enumerate(right[rank])
        if not _is_gradient(each.gradients[index], expected)
    ]
    if not wrong:
        return None
    rank, index = wrong[0]
    values = f"got {shown(seen[rank].gradients[index])}, expected {shown(right[rank][index])}"
    where = f"{evidence.label}: gradient of {NAMES[index]} on rank {rank}: {values}"
    for each in wrong_gradients(n):
        if all(
            _is_explained(its.gradients, each.gradients(given, whole, r))
            for r, its in enumerate(seen)
        ):
            return Finding(Outcome.WRONG, each.name, each.explanation, where, 2)
    if all(_is_rounded(each.gradients, its) for each, its in zip(seen, right, strict=True)):
        return Finding(Outcome.WRONG, *ROUNDED, where, 2)
    return Finding(
        Outcome.WRONG,
        "other gradients than the MLP's",
        "y is right. Backward goes from y's gradient, which all ranks have, through down, GELU and "
        "up of this rank's features; what these say of x is summed over the ranks",
        where,
        2,
    )


def changed_arguments(evidence: CaseEvidence, seen: Sequence[Seen]) -> Finding | None:
    """Tensors that the caller gets back as others."""
    for rank, each in enumerate(seen):
        if each.changed:
            name, why = (
                "changes its arguments",
                f"{each.changed} has other values than before: weights are the optimizer's to "
                "change, and the caller computes with x once more. Write to new tensors",
            )
        elif each.switched:
            name, why = (
                "switches requires_grad off",
                f"{each.switched} needs no gradient any more after the call; the caller's tensors "
                "stay as they are",
            )
        else:
            continue
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", 3)
    return None


def _is_gradient(got: Tensor | None, expected: Tensor) -> bool:
    """Where a rank has no features, there may be none."""
    if got is None:
        return not expected.numel()
    return is_close(got, expected)


def _is_explained(got: Sequence[Tensor | None], theory: Sequence[Tensor | None]) -> bool:
    """By a theory, for which a gradient of zeros may as well be none."""
    for its, value in zip(got, theory, strict=True):
        if value is None:
            continue
        if its is None:
            if value.any():
                return False
        elif not is_close(its, value):
            return False
    return True


def _is_rounded(got: Sequence[Tensor | None], right: Sequence[Tensor]) -> bool:
    return all(
        is_nearly(its, value) if its is not None else not value.numel()
        for its, value in zip(got, right, strict=True)
    )
