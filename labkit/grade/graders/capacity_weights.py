"""Mistakes in the weights of top_k_capacity, and in their gradients, by what comes of them.

Experts and slots are right where these are tried.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.graders.capacity_rules import Given, weights
from labkit.grade.graders.capacity_theories import Mistake


def _chosen(given: Given, p_TE: Tensor) -> Tensor:
    return p_TE.gather(1, given.experts)


def _kept(given: Given) -> Tensor:
    return (given.slots >= 0).to(given.logits.dtype)


def _normal(given: Given, chosen_TK: Tensor) -> Tensor:
    """Divided by the sum, where the case says so."""
    return chosen_TK / chosen_TK.sum(1, keepdim=True) if given.renormalise else chosen_TK


def _after_drops(given: Given) -> Tensor:
    kept = _chosen(given, given.p) * _kept(given)
    total = kept.sum(1, keepdim=True)
    return kept / total.masked_fill(total == 0, 1)


WEIGHTS: Sequence[Mistake] = (
    Mistake(
        "softmax over the chosen experts alone",
        "the weights of a token's k choices add up to 1: a softmax of the k chosen logits, or "
        "divided by their sum, which is the same. Without `renormalise` p counts as it is, so that "
        "a token that nobody suits changes little, and so that with k = 1 the router has a "
        "gradient at all",
        lambda given: weights(given._replace(renormalise=True), given.logits),
    ),
    Mistake(
        "does not renormalise",
        "the weights are p as it is, and `renormalise` asks for p over its sum over the k choices",
        lambda given: weights(given._replace(renormalise=False), given.logits),
    ),
    Mistake(
        "renormalises what the drops have left",
        "the weights are divided by the sum over the choices that were kept: a token that lost one "
        "of its experts gives all its weight to the other, and its output is as large as if it had "
        "both. The sum is over all k choices, and then dropped ones count 0",
        _after_drops,
    ),
    Mistake(
        "dropped choices keep a weight",
        "slot -1, and yet a weight: combine would add up what no expert has computed",
        lambda given: _normal(given, _chosen(given, given.p)),
    ),
    *(
        Mistake(
            "the bias is in the weights",
            "the weights are of p with the bias in it. It is there to move tokens, and whoever is "
            "moved must not count more for it; gradients would work against it",
            values,
        )
        for values in (
            lambda given: _normal(given, _chosen(given, given.p + given.bias)) * _kept(given),
            lambda given: (
                _normal(given, _chosen(given, torch.softmax(given.logits + given.bias, 1)))
                * _kept(given)
            ),
            lambda given: (
                _normal(given, _chosen(given, torch.softmax(given.p + given.bias, 1)))
                * _kept(given)
            ),
            lambda given: torch.softmax(_chosen(given, given.p + given.bias), 1) * _kept(given),
        )
    ),
    Mistake(
        "softmax over the tokens",
        "each column of p adds up to 1, and it should be each row: a token shares itself out "
        "among experts",
        lambda given: _normal(given, _chosen(given, torch.softmax(given.logits, 0))) * _kept(given),
    ),
    Mistake(
        "weights from a sigmoid",
        "each expert is scored for itself, by a sigmoid, as later DeepSeek models do; the contract "
        "is a softmax over all experts",
        lambda given: _normal(given, _chosen(given, given.logits.sigmoid())) * _kept(given),
    ),
    Mistake(
        "logits for weights",
        "the weights are the chosen logits as they are: p = softmax of them counts",
        lambda given: _normal(given, _chosen(given, given.logits)) * _kept(given),
    ),
    Mistake(
        "softmax of a softmax",
        "a second softmax is over what a first has made: the weights of all experts are nearly "
        "equal then",
        lambda given: torch.softmax(_chosen(given, given.p), 1) * _kept(given),
    ),
)


def _denominator_alone(given: Given) -> Tensor:
    """As if the sum over the choices were a constant."""
    logits = given.logits.clone().requires_grad_()
    chosen = _chosen(given, torch.softmax(logits, 1))
    divided = chosen / chosen.detach().sum(1, keepdim=True) * _kept(given)
    return torch.autograd.grad(divided, logits, given.output_gradient)[0]


def _of_dropped(given: Given) -> Tensor:
    logits = given.logits.clone().requires_grad_()
    values = _normal(given, _chosen(given, torch.softmax(logits, 1)))
    return torch.autograd.grad(values, logits, given.output_gradient)[0]


GRADIENTS: Sequence[Mistake] = (
    Mistake(
        "no gradient through the sum",
        "the weights are right, and their sum is a constant for backward: it is made of p, too, "
        "and what one choice gains the other loses",
        _denominator_alone,
    ),
    Mistake(
        "dropped choices have a gradient",
        "the weight of a dropped choice is 0 whatever p is, and so is its gradient",
        _of_dropped,
    ),
)


def right_gradient(given: Given) -> Tensor:
    """(T, E): of the logits."""
    logits = given.logits.clone().requires_grad_()
    return torch.autograd.grad(weights(given, logits), logits, given.output_gradient)[0]
