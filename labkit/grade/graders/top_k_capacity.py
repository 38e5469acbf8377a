"""Grade top_k_capacity: experts, slots, weights, tokens in slots, and the router's gradient."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch

Tensor = torch.Tensor
PARTS = ("expert_TK", "slot_TK", "weight_TK", "token_EC")
GRADIENT = "gradient of logits_TE"


def cases(draw: Draw) -> list[Case]:
    """Few slots and many, k of 1 and of E, a popular expert, large logits, float32."""
    popular = torch.tensor([0.0, 0, 2, 0, 0])
    is_high = (torch.arange(8)[:, None] + torch.arange(5)) % 3 == 0
    far_apart = torch.where(is_high, 1000.0, -1000.0)
    return [
        case("some are dropped", draw, 14, 5, 2, 0.75, False),
        case("some are dropped", draw, 14, 6, 2, 1.25, True),
        case("one choice each", draw, 11, 4, 1, 1.25, True),
        case("a popular expert", draw, 9, 5, 3, 1.0, True, bias=popular),
        case("more slots than tokens", draw, 9, 4, 2, 2.5, True),
        case("a capacity that is not rounded", draw, 12, 4, 2, 1.0, False),
        case("fewer tokens than experts", draw, 3, 7, 2, 1.0, False),
        case("all experts are chosen", draw, 7, 4, 4, 0.75, False),
        case("one expert", draw, 5, 1, 1, 0.5, False),
        case("logits near 1,000", draw, 14, 5, 2, 0.75, True, shift=1000.0),
        case("logits of 1,000 and -1,000", draw, 8, 5, 2, 2.5, True, shift=far_apart),
        case("float32", draw, 13, 5, 2, 0.75, True, dtype=torch.float32),
    ]


def case(
    label: str,
    draw: Draw,
    num_tokens: int,
    num_experts: int,
    k: int,
    factor: float,
    renormalise: bool,
    *,
    bias: Tensor | float = 0.0,
    shift: Tensor | float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Random logits; no two sums of a token are nearly equal, and its chosen p are not all 0."""
    while True:
        logits = 1.5 * draw.same(num_tokens, num_experts, dtype=torch.float64) + shift
        its_bias = 0.1 * draw.same(num_experts, dtype=torch.float64) + bias
        p = logits.softmax(1)
        sums, expert = (p + its_bias).sort(1, descending=True)
        chosen = p.gather(1, expert[:, :k]).sum(1)
        if (sums[:, :-1] - sums[:, 1:] > 2e-4).all() and (chosen > 0.01).all():
            break
    label += f": {num_tokens} tokens, {num_experts} experts, k = {k}, factor {factor}"
    label += ", renormalised" * renormalise
    grad = draw.same(num_tokens, k, dtype=dtype)
    return Case(label, logits.to(dtype), its_bias.to(dtype), k, factor, renormalise, grad)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """The four tensors by name, and the gradient that comes from the weights."""
    *given, grad = args
    logits = given[0].requires_grad_()
    returned = watch.function(*given)
    if not isinstance(returned, tuple | list) or len(returned) != len(PARTS):
        return returned
    parts = dict(zip(PARTS, returned))
    weight, found = parts["weight_TK"], None
    if isinstance(weight, Tensor) and weight.requires_grad and weight.shape == grad.shape:
        found = torch.autograd.grad(weight, logits, grad, allow_unused=True)[0]
    parts[GRADIENT] = torch.zeros_like(logits) if found is None else found
    return parts


def weights(p: Tensor, kept: Tensor, renormalise: bool) -> Tensor:
    """Weights of chosen experts from their p: renormalised, then 0 where dropped."""
    return (p / p.sum(1, keepdim=True) if renormalise else p) * kept


def routed(
    logits: Tensor,
    bias: Tensor,
    k: int,
    factor: float,
    renormalise: bool,
    grad: Tensor,
    *,
    score: Callable[[Tensor, Tensor], Tensor] = lambda logits, bias: logits.softmax(1) + bias,
    turn: Callable[[int, int], Any] = lambda t, j: (j, t),
    queue: Callable[[int, int], Any] = lambda expert, j: expert,
    p: Callable[..., Tensor] = lambda logits, bias, expert: logits.softmax(1).gather(1, expert),
    weigh: Callable[[Tensor, Tensor, bool], Tensor] = weights,
) -> dict[str, Tensor]:
    """The contract, choice by choice; a mistake replaces one of its rules."""
    logits = logits.detach().requires_grad_()
    num_tokens, num_experts = logits.shape
    expert = score(logits, bias).argsort(dim=1, descending=True)[:, :k]
    slot = torch.full((num_tokens, k), -1)
    token = torch.full((num_experts, math.ceil(factor * k * num_tokens / num_experts)), -1)
    length: Counter[Any] = Counter()
    choices = [(t, j) for t in range(num_tokens) for j in range(k)]
    for t, j in sorted(choices, key=lambda choice: turn(*choice)):
        e = int(expert[t, j])
        number = length[queue(e, j)]
        length[queue(e, j)] += 1
        if number < token.shape[1]:
            slot[t, j], token[e, number] = number, t
    weight = weigh(p(logits, bias, expert), slot >= 0, renormalise)
    gradient = torch.autograd.grad(weight, logits, grad)[0]
    return {**dict(zip(PARTS, (expert, slot, weight.detach(), token))), GRADIENT: gradient}


def same(got: Any, right: Any, case: Case | None = None) -> bool:
    """As `close`, with room for rounding: logits of 1,000, and gradients that should be 0."""
    if isinstance(right, dict):
        return isinstance(got, dict) and all(same(got[part], right[part]) for part in right)
    return close(got, right) or (
        right.is_floating_point()
        and isinstance(got, Tensor)
        and (got.shape, got.dtype) == (right.shape, right.dtype)
        and torch.allclose(got, right, *[1e4 * torch.finfo(right.dtype).eps] * 2)
    )


def is_right(s: Observed, *parts: str) -> bool:
    """Whether these parts are right."""
    return all(same(s.y[part], s.right[0][part]) for part in parts)


def has(part: str, **rules: Any) -> Callable[[Observed], bool]:
    """A predicate: this part is wrong, and is that of other rules, where 0 stands for NaN."""
    return lambda s: (
        not is_right(s, part)
        and same(s.y[part].nan_to_num(), routed(*s.args, **rules)[part].nan_to_num())
    )


WEIGHT = "weight_TK = p_TE.gather(1, expert_TK)"
CAPACITY = "math.ceil(capacity_factor * k * num_tokens / num_experts)"
SCORE = "(p_TE.detach() + bias_E)"

MISTAKES = [
    Mistake(
        "another capacity than ceil(factor k T / E)",
        "There are k T choices for E experts. The quotient is rounded up if there is a remainder, "
        "and only then. C has no other limit: it may be more than T.",
        seen=lambda s: s.y["token_EC"].shape[1] != s.right[0]["token_EC"].shape[1],
        made_by=patch(CAPACITY, CAPACITY.replace(" * k", "")),
    ),
    Mistake(
        "chooses without the bias",
        "A token's experts are those with the largest p + bias: the bias is what balances them.",
        seen=has("expert_TK", score=lambda logits, bias: logits),
        made_by=patch(SCORE, "p_TE.detach()"),
    ),
    Mistake(
        "adds the bias to the logits",
        "bias_E is in units of probabilities. Take the softmax first, then add the bias.",
        hint=3,
        seen=has("expert_TK", score=torch.add),
        made_by=patch(SCORE, "(logits_TE + bias_E)"),
    ),
    Mistake(
        "the bias is in the weights",
        "The bias is for the choice only. The weight is p of the chosen expert: gather it from p.",
        hint=3,
        seen=has("weight_TK", p=lambda logits, b, e: (logits.softmax(1) + b).gather(1, e)),
        made_by=patch(WEIGHT, "weight_TK = (p_TE + bias_E).gather(1, expert_TK)"),
    ),
    Mistake(
        "softmax over the chosen experts alone",
        "p is the softmax over all E experts. Without `renormalise` the weights of a token add up "
        "to less than 1.",
        seen=has("weight_TK", p=lambda logits, b, e: logits.gather(1, e).softmax(1)),
        made_by=patch(WEIGHT, "weight_TK = logits_TE.gather(1, expert_TK).softmax(1)"),
    ),
    Mistake(
        "softmax over the tokens",
        "p is the softmax over the experts of one token, dim 1: the p of a token add up to 1.",
        seen=has("expert_TK", score=lambda logits, bias: logits.softmax(0) + bias),
        made_by=patch("softmax(logits_TE, dim=1)", "softmax(logits_TE, dim=0)"),
    ),
    Mistake(
        "gives slots token by token",
        "The first choices of all tokens come before all second choices: the outer loop is over "
        "choices, the inner loop over tokens.",
        seen=has("slot_TK", turn=lambda t, j: (t, j)),
        made_by=patch(
            "expert_TK.T.flatten()", "expert_TK.flatten()", "view(k, num_tokens).T", "view(-1, k)"
        ),
    ),
    Mistake(
        "counts each choice from slot 0",
        "The choices share an expert's slots: second choices continue where first choices ended.",
        hint=2,
        seen=has("slot_TK", queue=lambda expert, j: (expert, j)),
        made_by=patch(
            "one_hot(expert_KT, num_experts).cumsum(0)",
            "one_hot(expert_TK.T, num_experts).cumsum(1).flatten(0, 1)",
        ),
    ),
    Mistake(
        "counts slots from 1",
        "A running sum of one-hot rows counts the choice itself. Its slot is the number of choices "
        "before it, so subtract 1.",
        hint=3,
        seen=lambda s: min(s.y["slot_TK"][s.y["slot_TK"] >= 0]) == 1,
        made_by=patch(
            "gather(1, expert_KT[:, None])[:, 0] - 1", "gather(1, expert_KT[:, None])[:, 0]"
        ),
    ),
    Mistake(
        "dropped choices keep their weight",
        "Nothing comes back for a dropped choice, so its weight is 0.",
        hint=2,
        seen=has("weight_TK", weigh=lambda p, kept, renorm: weights(p, kept >= 0, renorm)),
        made_by=patch("weight_TK * kept_TK", "weight_TK"),
    ),
    Mistake(
        "renormalises what the drops have left",
        "The sum is over all k choices, dropped ones included. Divide first, then set the weights "
        "of dropped choices to 0. If all choices are dropped, the other order divides 0 by 0.",
        hint=2,
        seen=has("weight_TK", weigh=lambda p, kept, renorm: weights(p * kept, kept, renorm)),
        made_by=patch(WEIGHT, f"{WEIGHT} * kept_TK"),
    ),
    Mistake(
        "a dropped choice writes into the last slot",
        "Index -1 is the last slot of an expert. Write token_EC for kept choices only.",
        hint=3,
        seen=lambda s: (
            is_right(s, "expert_TK", "slot_TK")
            and not is_right(s, "token_EC")
            and torch.equal(s.y["token_EC"][:, :-1], s.right[0]["token_EC"][:, :-1])
        ),
        made_by=patch(
            "token_EC[expert_TK[kept_TK], slot_TK[kept_TK]] = token_TK[kept_TK]",
            "token_EC[expert_TK, slot_TK.where(kept_TK, -1)] = token_TK",
        ),
    ),
    Mistake(
        "the softmax overflows",
        "exp(1,000) is inf, and inf / inf is NaN. Subtract each token's largest logit first, as "
        "torch.softmax does. With the mean or another logit subtracted, exp may still overflow.",
        hint=3,
        seen=lambda s: s.xs.abs().max() > 700 and not s.y["weight_TK"].isfinite().all(),
        made_by=patch(
            "torch.softmax(logits_TE, dim=1)",
            "logits_TE.exp() / logits_TE.exp().sum(1, keepdim=True)",
        ),
    ),
    Mistake(
        "no gradient reaches the router",
        "The weights have no graph. Indices have no gradient, so p is the only way for a gradient "
        "to reach the logits. Do not detach p for the weights, nor rebuild them from numbers.",
        hint=3,
        seen=lambda s: not s.y[GRADIENT].any() and is_right(s, "weight_TK"),
        made_by=patch(WEIGHT, "weight_TK = p_TE.detach().gather(1, expert_TK)"),
    ),
]

GRADER = Questions(
    name="top_k_capacity",
    cases=cases,
    right=routed,
    call=call,
    num_arguments=5,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.moe",),
    shown="experts, slots, drops and weights are right for k from 1 to E, with biases, with few "
    "slots and with many, and the router gets its gradient from the weights alone",
)
