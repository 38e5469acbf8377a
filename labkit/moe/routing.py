"""Routing: which token goes to which expert, and how much its answer counts.

Shapes, beside the legend in model.py:

    N  tokens of a batch, flattened     E  experts            k  choices of a token
    A  assignments: pairs (token, expert) that are computed, N*k of them where nothing is dropped

    token_A    0    0    1    1    2          token 2 has only one: its second choice was dropped
    expert_A   2    0    2    3    0
    weight_A  .7   .3   .6   .4   .8
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Routing:
    """What a router has decided on N tokens. Gradients flow through logits, probs and weights."""

    logits_NE: Tensor = field(repr=False)
    probs_NE: Tensor = field(repr=False)
    """softmax over the experts."""
    token_A: Tensor = field(repr=False)
    expert_A: Tensor = field(repr=False)
    weight_A: Tensor = field(repr=False)
    chosen_E: Tensor
    """Choices of each expert (int64), with those that were dropped."""

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.logits_NE.shape[0]

    @property
    def num_experts(self) -> int:
        """E."""
        return self.logits_NE.shape[1]

    @property
    def kept_E(self) -> Tensor:
        """Choices of each expert that are computed."""
        return counts_of(self.expert_A, self.num_experts)

    @property
    def dropped_E(self) -> Tensor:
        """Choices of each expert that are not."""
        return self.chosen_E - self.kept_E

    @property
    def num_dropped(self) -> int:
        """Choices that found their expert full. A token that loses all gets zeros from the layer,
        and passes it on the residual stream alone."""
        return int(self.dropped_E.sum())


def counts_of(experts: Tensor, num_experts: int) -> Tensor:
    """How often each of 0 to num_experts - 1 appears, (E,) int64; `experts`: any shape.

    As torch.bincount, which on a GPU makes the host wait: it asks for the largest.
    """
    flat = experts.flatten()
    return flat.new_zeros(num_experts).scatter_add_(0, flat, torch.ones_like(flat))
