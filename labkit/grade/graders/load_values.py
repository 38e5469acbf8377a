"""What load_balancing_loss returned, and the mistake that explains what is wrong with it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_values import shown
from labkit.grade.graders.load_theories import BALANCE, BALANCE_GRADIENTS, Given, Mistake, balance
from labkit.grade.graders.load_watch import Seen, Told
from labkit.grade.graders.load_z_theories import Z, z_loss
from labkit.grade.graders.logit_range import NOT_THE_LARGEST, OVERFLOWS, are_apart
from labkit.grade.outcome import Finding, Outcome

Loss = Callable[[Given, Tensor], Tensor]
_LOSSES: Sequence[tuple[str, Loss, Sequence[Mistake], Sequence[Mistake]]] = (
    ("balance", balance, BALANCE, BALANCE_GRADIENTS),
    ("z", z_loss, Z, ()),
)
# Sums of some tens of products, relative to the largest of them.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_NEAR = 1e-5  # what float32 makes of float64
_LOSES_DIGITS = (
    "loses digits on the way",
    "the value is nearly right, and its dtype holds more digits: something was in a smaller one. "
    "Integers divided by integers are float32, whatever the logits are: convert the counts first",
)
_NAN = (
    OVERFLOWS,
    "exp(1,000) is inf and log(exp(-1,000)) is -inf: subtract a token's largest logit first, and "
    "add it again to the logarithm, as torch.softmax and torch.logsumexp do",
)


def wrong_form(evidence: CaseEvidence, given: Given) -> Finding | None:
    """No two numbers in tensors, or of another dtype than they should have."""
    record = evidence.completed[0]
    name = "returns something else than two losses"
    if record.output_type != Told.__name__:
        why = f"the function returns a {record.output_type}; the contract is (balance, z), two "
        return _wrong(evidence, name, f"{why}dense tensors of shape (), with a graph", 3)
    for (which, *_), loss in zip(_LOSSES, record.outputs[1:3], strict=True):
        if loss.shape != ():
            why = f"{which} has shape {tuple(loss.shape)}, and a loss is one number, of shape ()"
            return _wrong(evidence, "returns another shape", why, 3)
        if loss.dtype != given.logits.dtype:
            why = f"{which} is {loss.dtype}; the contract is the logits' own, {given.logits.dtype}"
            return _wrong(evidence, "returns another dtype", why, 3)
    return None


def wrong_values(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """The first of the two losses that has another value, and then another gradient."""
    right = [loss(given, given.logits) for _, loss, _, _ in _LOSSES]
    if not _is_close(right[0], right[1]) and all(map(_is_close, seen.losses, right[::-1])):
        why = "the contract is (balance, z), in this order"
        return _wrong(evidence, "returns z first", why, 3)
    for i, (name, loss, mistakes, of_gradients) in enumerate(_LOSSES):
        found = _wrong_value(evidence, given, (name, seen.losses[i]), right[i], mistakes)
        found = found or _wrong_gradient(evidence, given, seen, i, (name, loss, of_gradients))
        if found is not None:
            return found
    return None


def _wrong_value(
    evidence: CaseEvidence,
    given: Given,
    loss: tuple[str, Tensor],
    right: Tensor,
    mistakes: Sequence[Mistake],
) -> Finding | None:
    name, got = loss
    if _is_close(got, right):
        return None
    seen = f"{name} = {float(got):.9g}, expected {float(right):.9g}"
    for mistake in mistakes:
        value = mistake.loss(given, given.logits)
        if not _is_close(value, right) and _is_close(got, value):
            return _wrong(evidence, mistake.name, mistake.explanation, mistake.hint, seen)
    if not got.isfinite():
        return _wrong(evidence, *_of_nan(given), 3, seen)
    if _is_close(got, right, _NEAR):
        return _wrong(evidence, *_LOSES_DIGITS, 3, seen)
    why = (
        "E * sum of f P: f the share of all T k choices, P the mean of p over all T tokens"
        if name == "balance"
        else "the mean over tokens of the squared log-sum-exp over experts"
    )
    return _wrong(evidence, f"another {name}", why, 2, seen)


def _wrong_gradient(
    evidence: CaseEvidence,
    given: Given,
    seen: Seen,
    number: int,
    about: tuple[str, Loss, Sequence[Mistake]],
) -> Finding | None:
    name, loss, mistakes = about
    got, right = seen.gradients[number], _gradient_of(loss, given)
    if _is_close(got, right):
        return None
    numbers = f"gradient of {name}: got {shown(got)}, expected {shown(right)}"
    if not seen.has_graph[number]:
        why = (
            f"the value of {name} is right, and backward does not get from it to the logits: what "
            "has one was detached, or made anew from numbers. A loss without a gradient is a "
            "measurement"
        )
        return _wrong(evidence, f"{name} has no gradient", why, 3)
    for mistake in mistakes:
        if _is_close(got, _gradient_of(mistake.loss, given)):
            return _wrong(evidence, mistake.name, mistake.explanation, mistake.hint, numbers)
    if not bool(got.isfinite().all()):
        return _wrong(evidence, *_of_nan(given), 3, numbers)
    why = "the value is right, and the gradient is not the formula's, with f as numbers"
    return _wrong(evidence, f"another gradient of {name}", why, 2, numbers)


def _of_nan(given: Given) -> tuple[str, str]:
    return NOT_THE_LARGEST if are_apart(given.logits) else _NAN


def _gradient_of(loss: Loss, given: Given) -> Tensor:
    logits = given.logits.clone().requires_grad_()
    return torch.autograd.grad(loss(given, logits), logits)[0]


def _is_close(got: Tensor, right: Tensor, rtol: float | None = None) -> bool:
    most = (rtol or _TOLERANCE[right.dtype]) * max(1.0, float(right.abs().max()))
    return bool(((got.double() - right.double()).abs() <= most).all())


def changed_input(evidence: CaseEvidence, seen: Seen) -> Finding | None:
    """Arguments that the caller gets back as others."""
    if not seen.has_changed:
        return None
    why = "logits_TE, expert_TK or kept_TK is not what it was before the call: dispatch needs them"
    return _wrong(evidence, "changes its input", why, 3)


def _wrong(evidence: CaseEvidence, name: str, why: str, hint: int, seen: str = "") -> Finding:
    first_seen = ": ".join(filter(None, (evidence.label, seen)))
    return Finding(Outcome.WRONG, name, why, first_seen, hint)
