"""Losses and gradients of a split vocabulary that code under test returned."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import is_same
from labkit.grade.graders.gradient_values import is_nearly, shown
from labkit.grade.graders.vocab_inputs import HIGH, Given, Seen
from labkit.grade.graders.vocab_theories import mistakes
from labkit.grade.outcome import Finding, Outcome

# A few roundings of float32 at the size of the largest logit, as in max + log(sum) - target.
_ROUNDINGS = 8 * torch.finfo(torch.float32).eps
_SMALLEST = 2.0**-24  # above 0 in float16


def wrong_form(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Other things than a number and a gradient of the logits' form."""
    for rank, each in enumerate(seen):
        share = given.shares[rank]
        loss, gradient = each.loss, each.gradient_Nv
        shapes = tuple(loss.shape), tuple(gradient.shape)
        name, why = "", ""
        if not each.has_form:
            name = "returns something else than a loss and a gradient"
            why = "a tuple of two dense tensors on the CPU was expected; is there a return?"
        elif shapes == (tuple(share.shape), ()):
            name, why = "returns the gradient first", "the loss comes first, and then the gradient"
        elif shapes == ((), tuple(given.logits_NV.shape)) and gradient.shape != share.shape:
            name = "returns the gradient of all logits"
            why = (
                f"the gradient has {gradient.shape[1]} columns, and this rank has "
                f"{share.shape[1]} tokens of the vocabulary"
            )
        elif loss.shape == given.targets_N.shape and loss.dim():
            name = "returns a loss for each position"
            why = "the loss is the mean of them: one number, a tensor of shape ()"
        elif shapes != ((), tuple(share.shape)):
            name = "returns something else than a loss and a gradient"
            why = f"shapes () and {tuple(share.shape)} were expected, and came as {shapes}"
        elif loss.dtype != torch.float32:
            name = "the loss is not in float32"
            why = f"it is in {_said(loss)}: all of it is computed in float32, and stays there"
        elif gradient.dtype != share.dtype:
            name = "the gradient has another dtype than the logits"
            why = f"it is in {_said(gradient)}, and the logits are in {_said(share)}"
        if name:
            return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=2)
    return None


def changed_arguments(evidence: CaseEvidence) -> Finding | None:
    """Logits or targets that are not what they were."""
    for rank, record in enumerate(evidence.completed):
        share, _, targets_N = evidence.case.arguments[rank]
        for what, before, after in zip(
            ("logits", "targets"), (share, targets_N), record.arguments, strict=True
        ):
            if not is_same(before, after):
                return Finding(
                    Outcome.WRONG,
                    f"changes the {what}",
                    f"the {what} are not what they were before the call. float() of a float32 "
                    "tensor is that tensor itself, and what is subtracted from it in place, or "
                    "reduced into it, is gone for the caller",
                    f"{evidence.label}: rank {rank}",
                    hint=3,
                )
    return None


def wrong_values(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """A loss or a gradient that is not one process's, by the mistake that explains it."""
    loss, gradients = given.right()
    for rank, each in enumerate(seen):
        if not _is_loss(each.loss, loss, given):
            values = f"loss on rank {rank}: got {shown(each.loss)}, expected {shown(loss)}"
        elif not _is_gradient(each.gradient_Nv, gradients[rank], given):
            got, expected = _first_wrong(each.gradient_Nv, gradients[rank], given)
            values = f"gradient on rank {rank}: got {got:.9g}, expected {expected:.9g}"
        else:
            continue
        found = _not_finite(given, seen) or _explained(given, seen)
        return Finding(Outcome.WRONG, *found, f"{evidence.label}: {values}", hint=2)
    return None


def are_right(given: Given, seen: Sequence[Seen]) -> bool:
    """Whether every rank has the loss and its gradient of one process."""
    loss, gradients = given.right()
    return all(
        _is_loss(each.loss, loss, given) and _is_gradient(each.gradient_Nv, gradient, given)
        for each, gradient in zip(seen, gradients, strict=True)
    )


def _not_finite(given: Given, seen: Sequence[Seen]) -> tuple[str, str] | None:
    """Where numbers have become inf or NaN."""
    parts = [part for each in seen for part in (each.loss, each.gradient_Nv)]
    if all(part.isfinite().all() for part in parts):
        return None
    if not all(share.shape[1] for share in given.shares):
        return (
            "an empty share makes NaN",
            "a share has no token, and there is inf or NaN in the result: its maximum is -inf, "
            "which decides nothing in a maximum; its sum of exp is 0. Check what is computed of it",
        )
    if given.logits_NV.max() - given.logits_NV.min() < HIGH / 20:  # all of one size
        if all(float(each.loss) == -torch.inf for each in seen) == (given.logits_NV.mean() > 0):
            return (
                "takes off more than the maximum",
                "the sum of exp has become 0 where the logits are high, or infinite where they are "
                "low: what was taken off is no logit at all, such as the sum of the shares' "
                'maxima. Reduce the maximum with op="max"',
            )
        return (
            "subtracts no maximum",
            "exp(10,000) is infinite in float32, and exp(-10,000) is 0. Take the highest logit of "
            "each position off all of them before exp: softmax stays the same, and the largest "
            "term is 1",
        )
    highest_N = given.logits_NV.amax(1)
    if highest_N.max() - highest_N.min() > HIGH:
        return (
            "subtracts one maximum from all positions",
            "logits of some positions lie around 10,000, those of others around -10,000, and exp "
            "of a difference of 20,000 is 0 or infinite: each position has a softmax and a maximum "
            "of its own. Reduce N maxima, not one",
        )
    return (
        "subtracts another maximum than the highest",
        "one share's logits are far above the others', and exp has become infinite: what is taken "
        "off has to be the highest of all ranks' maxima, neither their mean nor one of another "
        'share. Reduce with op="max"',
    )


def _explained(given: Given, seen: Sequence[Seen]) -> tuple[str, str]:
    loss, gradients = given.right()
    is_wrong_loss = not all(_is_loss(each.loss, loss, given) for each in seen)
    is_wrong_gradient = not all(
        _is_gradient(each.gradient_Nv, value, given)
        for each, value in zip(seen, gradients, strict=True)
    )
    for mistake in mistakes(given):
        if is_wrong_loss and mistake.losses is not None:
            pairs = zip(seen, mistake.losses, strict=True)
            if all(_is_loss(each.loss, value, given) for each, value in pairs):
                return mistake.name, mistake.explanation
        if is_wrong_gradient and mistake.gradients is not None:
            pairs = zip(seen, mistake.gradients, strict=True)
            if all(_is_gradient(each.gradient_Nv, value, given) for each, value in pairs):
                return mistake.name, mistake.explanation
    near = all(
        is_nearly(each.loss, loss) and is_nearly(each.gradient_Nv, value)
        for each, value in zip(seen, gradients, strict=True)
    )
    if near:
        return (
            "computes in fewer digits than float32",
            "every number is nearly right: something was added up, or travelled, in a smaller "
            "dtype. A sum of thousands of terms in bfloat16 stops growing after 256 equal ones, so "
            "the logits become float32 before exp, and only the gradient goes back",
        )
    if is_wrong_loss:
        return (
            "another loss than one process",
            "it is to be the mean over the positions of log(sum of exp of all the logits), less "
            "the target's logit",
        )
    return (
        "another gradient than one process",
        "the loss is right; its derivative with respect to a logit is softmax / N, and at the "
        "target (softmax - 1) / N",
    )


def _first_wrong(got: Tensor, expected: Tensor, given: Given) -> tuple[float, float]:
    off = (got.double() - expected).abs() > _room(expected, got.dtype, given)
    index = int((off | got.isnan()).flatten().nonzero()[0])
    return float(got.flatten()[index]), float(expected.flatten()[index])


def _is_loss(got: Tensor, expected: Tensor, given: Given) -> bool:
    """Right but for roundings."""
    room = _ROUNDINGS * (1 + float(given.logits_NV.abs().max()))
    return bool((got.double() - expected).abs() <= room)


def _is_gradient(got: Tensor, expected: Tensor, given: Given) -> bool:
    """Right but for roundings."""
    off = (got.double() - expected).abs()
    return bool((off <= _room(expected, got.dtype, given)).all())


def _room(expected: Tensor, dtype: torch.dtype, given: Given) -> Tensor:
    """Of an exponent with the roundings of a loss, over N; and the rounding of the result."""
    largest = 1 + float(given.logits_NV.abs().max())
    last = torch.finfo(dtype).eps * expected.abs() + _SMALLEST
    return last + _ROUNDINGS * largest / len(given.targets_N)


def _said(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
