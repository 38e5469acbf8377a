"""Mistakes in top_k_capacity, part by part, by what comes of them.

A part is judged when those before it are right: capacity, experts, slots, weights, gradients.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.grade.graders.capacity_rules import (
    Given,
    best,
    by_choice,
    by_token,
    by_weight,
    seat,
    seat_by_choice_alone,
    weights,
)


class Mistake(NamedTuple):
    """A name for it, and what it leads to."""

    name: str
    explanation: str
    values: Callable[[Given], Any]
    hint: int = 2


CAPACITIES: Sequence[Mistake] = (
    Mistake(
        "rounds the capacity down",
        "with C rounded down, or to the nearest, the slots are fewer than factor k T / E, and even "
        "a perfect balance drops tokens with a factor of 1: round up",
        lambda given: math.floor(given.share),
    ),
    Mistake(
        "a capacity without k",
        "C is of T / E: T tokens. But each of them makes k choices, and all experts together "
        "get k T: with k = 2 half of them find no slot",
        lambda given: math.ceil(given.factor * given.num_tokens / given.num_experts),
    ),
    Mistake(
        "a capacity without the factor",
        "C is of k T / E, what an expert gets in perfect balance; the factor says how much more "
        "or less than that it has room for",
        lambda given: math.ceil(given.k * given.num_tokens / given.num_experts),
    ),
    Mistake(
        "a capacity for all experts together",
        "C is factor k T: what all experts get; each of them has an E-th of it",
        lambda given: math.ceil(given.factor * given.k * given.num_tokens),
    ),
    Mistake(
        "caps the capacity at the number of tokens",
        "more slots than tokens can be of no use, but C follows from the four numbers alone here",
        lambda given: min(given.capacity, given.num_tokens),
        3,
    ),
    Mistake(
        "rounds before it multiplies by k",
        "k ceil(factor T / E) is up to k - 1 slots more: round once, at the end",
        lambda given: given.k * math.ceil(given.factor * given.num_tokens / given.num_experts),
    ),
    Mistake(
        "a capacity of one slot too many",
        "int(x) + 1 and x // 1 + 1 are no ceil: where x is a whole number, they are one more",
        lambda given: given.capacity + 1,
        3,
    ),
    Mistake(
        "a capacity of one slot too few",
        "C is one less than ceil(factor k T / E)",
        lambda given: given.capacity - 1,
        3,
    ),
)

EXPERTS: Sequence[Mistake] = (
    Mistake(
        "chooses without the bias",
        "the experts are the k largest of p: the bias decides who is chosen, and only that",
        lambda given: best(given.p, given.k),
    ),
    Mistake(
        "adds the bias to the logits",
        "the experts are the k largest of logits + bias. The bias is in units of probabilities: "
        "it is added to p",
        lambda given: best(given.logits + given.bias, given.k),
    ),
    Mistake(
        "subtracts the bias",
        "the experts are the k largest of p - bias",
        lambda given: best(given.p - given.bias, given.k),
    ),
    Mistake(
        "chooses the worst experts",
        "the experts are the k smallest of p + bias",
        lambda given: best(-given.p - given.bias, given.k),
    ),
    Mistake(
        "choices in rising order",
        "the k experts are right, and the best one comes last: which of them is the first choice, "
        "decides who gets a slot",
        lambda given: given.experts.flip(1),
    ),
    Mistake(
        "choices in the order of the experts",
        "the k experts are right, sorted by their numbers: which of them is the first choice, "
        "decides who gets a slot",
        lambda given: given.experts.sort(1).values,
    ),
    Mistake(
        "choices in the order of p",
        "the k experts are right, sorted by p and not by p + bias: the contract has one order, "
        "that in which they were chosen",
        lambda given: given.experts.gather(1, best(given.p.gather(1, given.experts), given.k)),
    ),
)


def _whole_tokens(given: Given) -> Tensor:
    slots = given.slots
    return slots.where((slots >= 0).all(1, keepdim=True), -1)


SLOTS: Sequence[Mistake] = (
    Mistake(
        "token by token instead of choice by choice",
        "a token's second choice takes a slot before a later token's first. All first choices "
        "come first: a token that loses its first choice loses more than one that loses its second",
        lambda given: seat(given, by_token(given)),
    ),
    Mistake(
        "the largest weights first",
        "slots go to the choices with the largest probabilities. That is a priority, too, and a "
        "better one where many are dropped (batch prioritised routing); here it is choice by "
        "choice, and within a choice by token",
        lambda given: seat(given, by_weight(given)),
    ),
    Mistake(
        "later tokens first",
        "within a choice the slots go to the last tokens: earlier ones come first",
        lambda given: seat(given, [(given.num_tokens - 1 - t, j) for t, j in by_choice(given)]),
    ),
    Mistake(
        "second choices first",
        "the last choices of all tokens are served before the first ones",
        lambda given: seat(given, [(t, given.k - 1 - j) for t, j in by_choice(given)]),
    ),
    Mistake(
        "counts each choice for itself",
        "the second choices are counted from 0 again, as if no first choice had taken a slot: two "
        "tokens are in the same one, and an expert gets up to k C",
        seat_by_choice_alone,
    ),
    Mistake(
        "drops nothing",
        "some slots are C or more: there are C of them, from 0, and whoever comes later is "
        "dropped: -1",
        lambda given: seat(given, by_choice(given), math.inf),
    ),
    Mistake(
        "leaves the last slot empty",
        "the slots of an expert are 0 to C - 1, C of them: a choice whose slot is C - 1 is kept",
        lambda given: seat(given, by_choice(given), given.capacity - 1),
        3,
    ),
    Mistake(
        "one slot more than there are",
        "a slot C is given, and the slots of an expert are 0 to C - 1: slot < C is kept",
        lambda given: seat(given, by_choice(given), given.capacity + 1),
        3,
    ),
    Mistake(
        "counts slots from 1",
        "a running sum counts the choice itself, too: subtract 1, for slots from 0",
        lambda given: seat(given, by_choice(given), first=1),
        3,
    ),
    Mistake(
        "counts slots from 1",
        "a running sum counts the choice itself, too: subtract 1, for slots from 0. As it is, "
        "slot C is no slot, and the last one of each expert is lost",
        lambda given: seat(given, by_choice(given), given.capacity - 1, first=1),
        3,
    ),
    Mistake(
        "drops a token with all its choices",
        "a token that has lost one of its choices has lost the others, too: each choice is kept or "
        "dropped for itself",
        _whole_tokens,
    ),
    Mistake(
        "dropped choices look like kept ones",
        "what is dropped has slot 0, where the first token of the expert is: the mark is -1",
        lambda given: given.slots.clamp(min=0),
        3,
    ),
)


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
