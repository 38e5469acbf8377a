"""Top-k routing by rules that can be other than they should be.

With the rules as they stand it is right, and with one of them replaced it is what that mistake
leads to. Suffixes: T tokens, E experts, K choices of a token, C slots.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

Turn = tuple[int, int]
"""(token, which of its choices)"""


class Given(NamedTuple):
    """What a case is made of."""

    logits: Tensor
    bias: Tensor
    k: int
    factor: float
    renormalise: bool
    output_gradient: Tensor
    """(T, K): of the weights."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.logits)

    @property
    def num_experts(self) -> int:
        """E."""
        return self.logits.shape[1]

    @property
    def share(self) -> float:
        """Slots of an expert before they are rounded up."""
        return self.factor * self.k * self.num_tokens / self.num_experts

    @property
    def capacity(self) -> int:
        """C."""
        return math.ceil(self.share)

    @property
    def p(self) -> Tensor:
        """(T, E)"""
        return torch.softmax(self.logits, 1)

    @property
    def experts(self) -> Tensor:
        """(T, K)"""
        return best(self.p + self.bias, self.k)

    @property
    def slots(self) -> Tensor:
        """(T, K)"""
        return seat(self, by_choice(self))


def best(scores_TE: Tensor, k: int) -> Tensor:
    """(T, K): the k largest of each row, in falling order."""
    return scores_TE.detach().topk(k, dim=1).indices


def by_choice(given: Given) -> list[Turn]:
    """First choices of all tokens, then second ones."""
    return [(token, choice) for choice in range(given.k) for token in range(given.num_tokens)]


def by_token(given: Given) -> list[Turn]:
    """All choices of the first token, then of the second."""
    return [(token, choice) for token in range(given.num_tokens) for choice in range(given.k)]


def by_weight(given: Given) -> list[Turn]:
    """The largest probability first, of whichever token."""
    chosen = given.p.gather(1, given.experts)
    return sorted(by_choice(given), key=lambda turn: -float(chosen[turn]))


def seat(
    given: Given, turns: Iterable[Turn], capacity: float | None = None, first: int = 0
) -> Tensor:
    """(T, K): slots, in the order of turns; -1 where no slot is left.

    capacity: other than the right one; first: the number of an expert's first slot.
    """
    experts: list[list[int]] = given.experts.tolist()
    limit = given.capacity if capacity is None else capacity
    slots, taken = [[-1] * given.k for _ in experts], [0] * given.num_experts
    for token, choice in turns:
        expert = experts[token][choice]
        if taken[expert] < limit:
            slots[token][choice] = first + taken[expert]
        taken[expert] += 1
    return torch.tensor(slots)


def seat_by_choice_alone(given: Given) -> Tensor:
    """As if the second choices found empty buffers again."""
    slots = [
        seat(given, [(token, choice) for token in range(given.num_tokens)])[:, choice]
        for choice in range(given.k)
    ]
    return torch.stack(slots, 1)


def tokens_in(given: Given, slots_TK: Tensor, empty: int = -1) -> Tensor:
    """(E, C): who sits where."""
    tokens, experts = torch.full((given.num_experts, given.capacity), empty), given.experts
    for token, choice in by_choice(given):
        slot = int(slots_TK[token, choice])
        if 0 <= slot < given.capacity:
            tokens[int(experts[token, choice]), slot] = token
    return tokens


def weights(given: Given, logits_TE: Tensor) -> Tensor:
    """(T, K): the right ones, of logits with or without a graph."""
    chosen = torch.softmax(logits_TE, 1).gather(1, given.experts)
    if given.renormalise:
        chosen = chosen / chosen.sum(1, keepdim=True)
    return chosen * (given.slots >= 0)
