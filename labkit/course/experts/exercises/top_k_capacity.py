"""Grade top_k_capacity: experts, slots, weights, tokens in slots, and the router's gradient."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

PARTS = ("expert_TK", "slot_TK", "weight_TK", "token_EC")


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Few slots and many, k of 1 and of E, a popular expert, large logits, float32."""

    def logits(T: int, E: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return 1.5 * draw.same(T, E, dtype=dtype)

    is_high = (torch.arange(8)[:, None] + torch.arange(5)) % 3 == 0
    is_high[0] = False
    for label, logits_TE, k, factor, renormalise in [
        ("some are dropped", logits(14, 5), 2, 0.75, False),
        ("one choice each", logits(11, 4), 1, 1.25, True),
        ("a popular expert", logits(9, 5) + torch.eye(5)[2] * 3, 3, 1.0, True),
        ("more slots than tokens", logits(9, 4), 2, 2.5, True),
        ("a capacity that is not rounded", logits(12, 4), 2, 1.0, False),
        ("fewer tokens than experts", logits(3, 7), 2, 1.0, False),
        ("all experts are chosen", logits(7, 4), 4, 0.75, False),
        ("one expert", logits(5, 1), 1, 0.5, False),
        ("logits of 1,000 and -1,000", logits(8, 5) + 2000.0 * is_high - 1000, 2, 2.5, True),
        ("float32", logits(13, 5, torch.float32), 2, 0.75, True),
    ]:
        T, E = logits_TE.shape
        bias_E = 0.1 * draw.same(E, dtype=logits_TE.dtype)
        grad_TK = draw.same(T, k, dtype=logits_TE.dtype)
        label += f": {T} tokens, {E} experts, k = {k}, factor {factor}"
        label += ", renormalised" * renormalise
        yield g.Case(label, logits_TE, bias_E, k, factor, renormalise, grad_TK)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Return the learner's tensors, by name, with the gradient."""
    return with_gradient(watch.function, args)


def right(*args: Any) -> Any:
    """Return the right tensors, by name, with the gradient."""
    return with_gradient(routed, args)


def with_gradient(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the function's results, by name, and the gradient that comes from the weights."""
    logits_TE, *others, grad_TK = args
    logits_TE = logits_TE.detach().requires_grad_()
    returned = function(logits_TE, *others)
    if not isinstance(returned, tuple | list) or len(returned) != len(PARTS):
        return returned
    parts = dict(zip(PARTS, returned))
    weight_TK = parts["weight_TK"]
    if isinstance(weight_TK, Tensor) and weight_TK.shape == grad_TK.shape:
        # logits_TE is a term because `close` cannot compare gradients that are nearly 0.
        total = logits_TE.sum() + (weight_TK * grad_TK).sum()
        parts["gradient of logits_TE, plus 1"] = torch.autograd.grad(total, logits_TE)[0]
    return parts


def routed(
    logits_TE: Tensor, bias_E: Tensor, k: int, factor: float, renormalise: bool
) -> tuple[Tensor, ...]:
    """Return the right tensors: choice by choice, with a list of tokens for each expert."""
    T, E = logits_TE.shape
    capacity = math.ceil(factor * k * T / E)
    p_TE = logits_TE.softmax(1)
    expert_TK = (p_TE + bias_E).argsort(dim=1, descending=True)[:, :k]
    slot_TK, tokens = torch.full((T, k), -1), [[] for _ in range(E)]
    for j, t in itertools.product(range(k), range(T)):
        if len(queue := tokens[expert_TK[t, j]]) < capacity:
            slot_TK[t, j] = len(queue)
            queue.append(t)
    token_EC = torch.tensor([queue + [-1] * (capacity - len(queue)) for queue in tokens])
    weight_TK = p_TE.gather(1, expert_TK)
    total = weight_TK.sum(1, keepdim=True) if renormalise else 1
    return expert_TK, slot_TK, weight_TK / total * (slot_TK >= 0), token_EC


def shares_a_slot(s: g.Observed) -> bool:
    """Return whether two choices have the same slot of the same expert."""
    expert, slot = s.y["expert_TK"], s.y["slot_TK"]
    taken = (expert * 1000 + slot)[slot >= 0]
    return len(taken.unique()) < len(taken)


def differs_in_the_last_slot(s: g.Observed) -> bool:
    """Return whether only the last slots of experts have other tokens."""
    differs = (s.y["token_EC"] != s.right[0]["token_EC"]).any(0)
    return bool(differs[-1]) and not differs[:-1].any()


WEIGHT = "weight_TK = p_TE.gather(1, expert_TK)"
KEPT = f"{WEIGHT} * kept_TK"
MISTAKES = [
    g.Mistake(
        "another capacity than ceil(factor k T / E)",
        "There are k T choices for E experts. The quotient is rounded up if there is a remainder, "
        "and only then. C has no other limit: it may be more than T.",
        g.patch("math.ceil(capacity_factor * k", "math.ceil(capacity_factor"),
        wrong=lambda s: s.y["token_EC"].shape[1] != s.right[0]["token_EC"].shape[1],
    ),
    g.Mistake(
        "adds the bias to the logits",
        "The bias balances the experts, and is in units of probabilities: take the softmax over "
        "the experts of a token first, then add the bias, then choose the largest sums.",
        g.patch("(p_TE.detach() + bias_E)", "(logits_TE + bias_E)"),
    ),
    g.Mistake(
        "the weight is another number than p",
        "The weight is p of the chosen expert, of the softmax over all E experts: gather it from "
        "p. The bias is for the choice only. Without `renormalise` the weights of a token add up "
        "to less than 1.",
        g.patches(
            WEIGHT,
            "weight_TK = (p_TE + bias_E).gather(1, expert_TK)",
            "weight_TK = logits_TE.gather(1, expert_TK).softmax(1)",
        ),
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
        "two choices share a slot",
        "An expert's slots are 0 to C - 1, for all its choices together: second choices continue "
        "where first choices ended. If the count begins again at 0, one of two tokens is lost.",
        g.patch(
            "one_hot(expert_KT, num_experts).cumsum(0)",
            "one_hot(expert_TK.T, num_experts).cumsum(1).flatten(0, 1)",
        ),
        wrong=shares_a_slot,
        hint=2,
    ),
    g.Mistake(
        "renormalises what the drops have left",
        "The sum is over all k choices, dropped ones included. Divide first, then set the weights "
        "of dropped choices to 0. If all choices are dropped, the other order divides 0 by 0.",
        [
            g.patch(WEIGHT, KEPT),
            g.patch(WEIGHT, KEPT, "keepdim=True)", "keepdim=True).clamp(min=1e-9)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "a dropped choice writes into the last slot",
        "Index -1 is the last slot of an expert. Write token_EC for kept choices only.",
        g.patch(
            "token_EC[expert_TK[kept_TK], slot_TK[kept_TK]] = token_TK[kept_TK]",
            "token_EC[expert_TK, slot_TK.where(kept_TK, -1)] = token_TK",
        ),
        wrong=differs_in_the_last_slot,  # the token depends on the order of writing
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
    same=g.within(10_000),  # p of logits near 1,000
    mistakes=MISTAKES,
    closed=("labkit.moe",),
    shown="experts, slots, drops and weights are right for k from 1 to E, with biases, with few "
    "slots and with many, and the router gets its gradient from the weights alone",
)
