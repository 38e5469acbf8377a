"""Grade top_k_capacity: experts, slots, weights, tokens in slots, and the router's gradient."""

import math
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

PARTS = ("expert_TK", "slot_TK", "weight_TK", "token_EC")
GRADIENT = "gradient of logits_TE"


def cases(draw: g.Draw) -> list[g.Case]:
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
    draw: g.Draw,
    *sizes: Any,
    bias: Tensor | float = 0.0,
    shift: Tensor | float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> g.Case:
    """Random logits; no two sums of a token are nearly equal, and its chosen p are not all 0."""
    num_tokens, num_experts, k, factor, renormalise = sizes
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
    return g.Case(label, logits.to(dtype), its_bias.to(dtype), k, factor, renormalise, grad)


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


def right(
    logits: Tensor, bias: Tensor, k: int, factor: float, renormalise: bool, grad: Tensor
) -> dict[str, Tensor]:
    """Choice by choice, with a list of tokens for each expert."""
    logits = logits.detach().requires_grad_()
    num_tokens, num_experts = logits.shape
    capacity = math.ceil(factor * k * num_tokens / num_experts)
    p = logits.softmax(1)
    expert = (p + bias).argsort(dim=1, descending=True)[:, :k]
    slot, tokens = torch.full((num_tokens, k), -1), [[] for _ in range(num_experts)]
    for j in range(k):
        for t in range(num_tokens):
            if len(queue := tokens[expert[t, j]]) < capacity:
                slot[t, j] = len(queue)
                queue.append(t)
    token = torch.tensor([queue + [-1] * (capacity - len(queue)) for queue in tokens])
    chosen = p.gather(1, expert)
    weight = (chosen / chosen.sum(1, keepdim=True) if renormalise else chosen) * (slot >= 0)
    gradient = torch.autograd.grad(weight, logits, grad)[0]
    return {**dict(zip(PARTS, (expert, slot, weight.detach(), token))), GRADIENT: gradient}


def same(got: Any, right: Any, case: g.Case | None = None) -> bool:
    """As `close`, with room for rounding: logits of 1,000, and gradients that should be 0."""
    if isinstance(right, dict):
        return isinstance(got, dict) and all(same(got[part], right[part]) for part in right)
    is_like = isinstance(got, Tensor) and (got.shape, got.dtype) == (right.shape, right.dtype)
    atol = 1e4 * torch.finfo(right.dtype).eps if right.is_floating_point() else 0
    return is_like and torch.allclose(got, right, rtol=0, atol=atol, equal_nan=True)


WEIGHT = "weight_TK = p_TE.gather(1, expert_TK)"
CAPACITY = "math.ceil(capacity_factor * k * num_tokens / num_experts)"
SCORE, QUEUES = "(p_TE.detach() + bias_E)", "one_hot(expert_KT, num_experts).cumsum(0)"
WRITE = "token_EC[expert_TK[kept_TK], slot_TK[kept_TK]] = token_TK[kept_TK]"
FROM_0 = "one_hot(expert_TK.T, num_experts).cumsum(1).flatten(0, 1)"
CHOICE_BY_CHOICE = "for e, s, t in zip(expert_KT, slot_KT, token_TK.T.flatten()):\n"
CHOICE_BY_CHOICE += "        if s < capacity: token_EC[e, s] = t"
MISTAKES = [
    g.Mistake(
        "another capacity than ceil(factor k T / E)",
        "There are k T choices for E experts. The quotient is rounded up if there is a remainder, "
        "and only then. C has no other limit: it may be more than T.",
        g.patch(CAPACITY, CAPACITY.replace(" * k", "")),
        seen=lambda s: s.y["token_EC"].shape[1] != s.right[0]["token_EC"].shape[1],
    ),
    g.Mistake(
        "chooses by another sum than p + bias",
        "The bias balances the experts, and is in units of probabilities: take the softmax over "
        "the experts of a token first, then add the bias, then choose the largest sums.",
        [
            g.patch(SCORE, "p_TE.detach()"),
            g.patch(SCORE, "(logits_TE + bias_E)"),
            g.patch("softmax(logits_TE, dim=1)", "softmax(logits_TE, dim=0)"),
        ],
    ),
    g.Mistake(
        "the weight is another number than p",
        "The weight is p of the chosen expert, of the softmax over all E experts: gather it from "
        "p. The bias is for the choice only. Without `renormalise` the weights of a token add up "
        "to less than 1.",
        [
            g.patch(WEIGHT, "weight_TK = (p_TE + bias_E).gather(1, expert_TK)"),
            g.patch(WEIGHT, "weight_TK = logits_TE.gather(1, expert_TK).softmax(1)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "gives slots token by token",
        "The first choices of all tokens come before all second choices: the outer loop is over "
        "choices, the inner loop over tokens.",
        g.patch(
            *("expert_TK.T.flatten()", "expert_TK.flatten()"),
            *("view(k, num_tokens).T", "view(num_tokens, k)"),
        ),
    ),
    g.Mistake(
        "counts slots from another number",
        "An expert's slots are 0 to C - 1, for all its choices together: second choices continue "
        "where first choices ended. If the count begins again at 0, two choices share a slot, and "
        "one token is lost. A running sum of one-hot rows counts the choice itself, so subtract 1.",
        [
            g.patch(QUEUES, FROM_0),
            g.patch(QUEUES, FROM_0, WRITE, CHOICE_BY_CHOICE),
            g.patch("expert_KT[:, None])[:, 0] - 1", "expert_KT[:, None])[:, 0]"),
        ],
        hint=2,
    ),
    g.Mistake(
        "dropped choices keep their weight",
        "Nothing comes back for a dropped choice, so its weight is 0.",
        g.patch("weight_TK * kept_TK", "weight_TK"),
        hint=2,
    ),
    g.Mistake(
        "renormalises what the drops have left",
        "The sum is over all k choices, dropped ones included. Divide first, then set the weights "
        "of dropped choices to 0. If all choices are dropped, the other order divides 0 by 0.",
        [
            g.patch(WEIGHT, f"{WEIGHT} * kept_TK"),
            g.patch(
                *(WEIGHT, f"{WEIGHT} * kept_TK"),
                *("sum(dim=1, keepdim=True)", "sum(dim=1, keepdim=True).clamp_min(1e-9)"),
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "a dropped choice writes into the last slot",
        "Index -1 is the last slot of an expert. Write token_EC for kept choices only.",
        g.patch(WRITE, "token_EC[expert_TK, slot_TK.where(kept_TK, -1)] = token_TK"),
        # Which choice writes last depends on the order.
        seen=lambda s: (
            same(s.y["slot_TK"], s.right[0]["slot_TK"])
            and not same(s.y["token_EC"], s.right[0]["token_EC"])
            and same(s.y["token_EC"][:, :-1], s.right[0]["token_EC"][:, :-1])
        ),
        hint=3,
    ),
    g.Mistake(
        "the softmax overflows",
        "exp(1,000) is inf, and inf / inf is NaN. Subtract each token's largest logit first, as "
        "torch.softmax does. With the mean or another logit subtracted, exp may still overflow.",
        g.patch(
            "torch.softmax(logits_TE, dim=1)",
            "logits_TE.exp() / logits_TE.exp().sum(1, keepdim=True)",
        ),
        seen=lambda s: s.xs.abs().max() > 700 and not s.y["weight_TK"].isfinite().all(),
        hint=3,
    ),
    g.Mistake(
        "no gradient reaches the router",
        "The weights have no graph. Indices have no gradient, so p is the only way for a gradient "
        "to reach the logits. Do not detach p for the weights, nor rebuild them from numbers.",
        g.patch(WEIGHT, "weight_TK = p_TE.detach().gather(1, expert_TK)"),
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    call=call,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.moe",),
    shown="experts, slots, drops and weights are right for k from 1 to E, with biases, with few "
    "slots and with many, and the router gets its gradient from the weights alone",
)
