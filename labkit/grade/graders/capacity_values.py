"""What top_k_capacity returned, part by part, and the mistake that explains what is wrong."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.capacity_rules import Given, tokens_in, weights
from labkit.grade.graders.capacity_theories import CAPACITIES, EXPERTS, SLOTS, Mistake
from labkit.grade.graders.capacity_watch import Seen, Told
from labkit.grade.graders.capacity_weights import GRADIENTS, WEIGHTS, right_gradient
from labkit.grade.graders.gradient_values import shown
from labkit.grade.graders.logit_range import NOT_THE_LARGEST, OVERFLOWS, are_apart
from labkit.grade.outcome import Finding, Outcome

_NAMES = ("expert_TK", "slot_TK", "weight_TK", "token_EC")
_FORM = "returns something else than four tensors"
_NAN = (
    OVERFLOWS,
    "exp(1,000) is inf, and exp(-1,000) is 0: inf / inf and 0 / 0 are NaN. Subtract a token's "
    "largest logit first, as torch.softmax does; and what divides must not be 0",
)
# Softmaxes of a few experts, a sum and a division; gradients are sums of a few of those.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def wrong_form(evidence: CaseEvidence, given: Given) -> Finding | None:
    """No four tensors, or of other shapes or dtypes than they should have."""
    record = evidence.completed[0]
    if record.output_type != Told.__name__:
        why = f"the function returns a {record.output_type}; the contract is a tuple of four "
        return _wrong(evidence, _FORM, f"{why}dense tensors: {', '.join(_NAMES)}", 3)
    returned = record.outputs[1:5]
    by_choice, floats = (given.num_tokens, given.k), given.logits.dtype
    shapes = [by_choice, by_choice, by_choice, (given.num_experts, given.capacity)]
    dtypes = [torch.int64, torch.int64, floats, torch.int64]
    for name, each, shape, dtype in zip(_NAMES, returned, shapes, dtypes, strict=True):
        if each.shape != shape:
            return _other_shape(evidence, given, name, tuple(each.shape), shape)
        if each.dtype != dtype:
            why = f"{name} is {each.dtype}, and the contract is {dtype}"
            return _wrong(evidence, "returns another dtype", why, 3)
    return None


def _other_shape(
    evidence: CaseEvidence, given: Given, name: str, got: tuple[int, ...], wanted: tuple[int, ...]
) -> Finding:
    seen = f"{name} has shape {got}, expected {wanted}"
    if name == _NAMES[3] and len(got) == 2 and got[0] == given.num_experts:
        for mistake in CAPACITIES:
            if mistake.values(given) == got[1] != given.capacity:
                return _wrong(evidence, mistake.name, mistake.explanation, mistake.hint, seen)
        why = f"each expert has {got[1]} slots, and ceil(factor k T / E) is {given.capacity}"
        return _wrong(evidence, "another capacity", why, 2, seen)
    return _wrong(evidence, "returns another shape", seen, 3)


def wrong_values(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """The first part that is wrong: experts, slots, who sits in them, weights."""
    return (
        _overflow(evidence, given, seen)
        or _wrong_part(evidence, given, (_NAMES[0], seen.experts), given.experts, EXPERTS)
        or _wrong_part(evidence, given, (_NAMES[1], seen.slots), given.slots, SLOTS)
        or _wrong_tokens(evidence, given, seen)
        or _wrong_part(
            evidence, given, (_NAMES[2], seen.weights), weights(given, given.logits), WEIGHTS
        )
    )


def _overflow(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """Other experts of just those tokens whose probabilities are no numbers."""
    is_none = ~seen.weights.isfinite().all(1)
    if are_apart(given.logits) and bool(is_none.any()):
        token = int(is_none.nonzero()[0])
        weights_seen = f"weights of token {token}: {_row(seen.weights, token)}"
        return _wrong(evidence, *NOT_THE_LARGEST, 3, weights_seen)
    is_wrong = (seen.experts != given.experts).any(1)
    if not is_wrong.any() or not bool((is_none | ~is_wrong).all()):
        return None
    token = int(is_wrong.nonzero()[0])
    return _wrong(evidence, *_NAN, 3, f"weights of token {token}: {_row(seen.weights, token)}")


def _wrong_tokens(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    right = tokens_in(given, given.slots)
    if torch.equal(seen.tokens, right):
        return None
    name, why = (
        "token_EC is not what slot_TK says",
        "token_EC[e, c] is the token t with a choice j such that expert_TK[t, j] = e and "
        "slot_TK[t, j] = c, and -1 where there is none",
    )
    if torch.equal(seen.tokens, tokens_in(given, given.slots, empty=0)):
        name, why = (
            "empty slots hold token 0",
            "a slot that nobody has taken holds 0, which is a token, too: the first one would be "
            "computed many times over. The mark is -1",
        )
    elif torch.equal(seen.tokens.sort(1).values, right.sort(1).values):
        name, why = (
            "tokens in other slots than slot_TK says",
            "each expert has its tokens, and not in the slots that slot_TK has for them: what "
            "combine takes out of a slot would be another token's",
        )
    return _wrong(evidence, name, why, 3, f"got {seen.tokens.tolist()}, expected {right.tolist()}")


def wrong_gradient(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """A gradient of the logits that is not that of the weights."""
    right = right_gradient(given)
    if _is_close(seen.gradient, right):
        return None
    if not seen.has_graph:
        why = (
            "the weights are right, and backward does not get from them to the logits: they were "
            "detached, or made anew from numbers. It is the only way on which a router learns "
            "which expert was of use"
        )
        return _wrong(evidence, "no gradient reaches the router", why, 3)
    return _wrong_part(
        evidence, given, ("the gradient of logits_TE", seen.gradient), right, GRADIENTS
    )


def _wrong_part(
    evidence: CaseEvidence,
    given: Given,
    part: tuple[str, Tensor],
    right: Tensor,
    mistakes: Sequence[Mistake],
) -> Finding | None:
    name, got = part
    if _is_close(got, right):
        return None
    token = int((~_close(got, right)).reshape(len(right), -1).any(1).nonzero()[0])
    seen = f"{name}, token {token}: got {_row(got, token)}, expected {_row(right, token)}"
    for mistake in mistakes:
        values = mistake.values(given)
        # A mistake that divides by 0 has NaN where its theory has 0.
        if not _is_close(values, right) and _is_close(_finite(got), _finite(values)):
            return _wrong(evidence, mistake.name, mistake.explanation, mistake.hint, seen)
    if got.is_floating_point() and not bool(got.isfinite().all()):
        return _wrong(evidence, _NAN[0], _NAN[1], 3, seen)
    why = "each row is one token's; the contract says what is in it, in the order of its choices"
    return _wrong(evidence, f"another {name.removeprefix('the ')}", why, 2, seen)


def _row(values: Tensor, token: int) -> str:
    return shown(values[token].double())


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(0, 0, 0) if values.is_floating_point() else values


def _is_close(got: Tensor, right: Tensor) -> bool:
    return got.shape == right.shape and bool(_close(got, right).all())


def _close(got: Tensor, right: Tensor) -> Tensor:
    if not right.is_floating_point():
        return got == right
    most = _TOLERANCE[right.dtype] * (1 + right.double().abs())
    return (got.double() - right.double()).abs() <= most


def changed_input(evidence: CaseEvidence, seen: Seen) -> Finding | None:
    """Logits or a bias that the caller gets back as others."""
    if not seen.has_changed:
        return None
    why = "logits_TE or bias_E is not what it was before the call: the z-loss needs the logits, too"
    return _wrong(evidence, "changes its input", why, 3)


def _wrong(evidence: CaseEvidence, name: str, why: str, hint: int, seen: str = "") -> Finding:
    first_seen = ": ".join(filter(None, (evidence.label, seen)))
    return Finding(Outcome.WRONG, name, why, first_seen, hint)
