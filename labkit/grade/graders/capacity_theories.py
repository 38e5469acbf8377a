"""Mistakes in who goes where in top_k_capacity, part by part, by what comes of them.

A part is judged when those before it are right: capacity, experts, slots; then weights and
gradients (capacity_weights.py).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from labkit.grade.graders.capacity_rules import (
    Given,
    best,
    by_choice,
    by_token,
    by_weight,
    seat,
    seat_by_choice_alone,
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
        3,
    ),
    Mistake(
        "a capacity without k",
        "C is of T / E: T tokens. But each of them makes k choices, and all experts together "
        "get k T: with k = 2 half of them find no slot",
        lambda given: math.ceil(given.factor * given.num_tokens / given.num_experts),
        3,
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
        3,
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
        3,
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
