"""Balance without a loss: a bias that makes a busy expert less likely to be chosen.

    chosen by     p_e + b_e                                 no gradient flows here anyway
    weighed by    p_e                                       the answer does not know of b
    after a step  b_e += rate * sign(mean load - load_e)    each by the same amount, however uneven

An auxiliary loss pulls at the weights of the router, against what the task wants of them. The bias
changes who is chosen and leaves every gradient to the task. The load is that of the whole batch,
over all ranks, so that b is the same everywhere: it is a buffer, and travels in the state_dict.

Papers: Wang et al., "Auxiliary-Loss-Free Load Balancing", arXiv:2408.15664; DeepSeek-V3,
arXiv:2412.19437, section 2.1.2, where p is a sigmoid of each logit; here it is the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from labkit import arguments
from labkit.moe.moe_config import Weights
from labkit.moe.router import TopKRouter


class BiasBalancedRouter(TopKRouter):
    """A TopKRouter that chooses by p + bias and weighs by p. Call `rebalance` after each step."""

    bias_E: Tensor

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        top_k: int,
        *,
        rate: float = 0.001,
        weights: Weights = "of_chosen",
        capacity_factor: float | None = None,
    ) -> None:
        """rate: what a bias moves in a step. TypeError or ValueError as TopKRouter."""
        super().__init__(
            hidden, num_experts, top_k, weights=weights, capacity_factor=capacity_factor
        )
        allowed = "0 or more, small beside 1, such as 0.001"
        self.rate = arguments.number("rate", rate, allowed, least=0, below=math.inf)
        self.register_buffer("bias_E", torch.zeros(num_experts))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiasBalancedRouter:
        """Devices change, the dtype stays: in bfloat16 a rate of 0.001 is lost beside a bias of 1,
        and two biases that differ by it are equal."""
        bias_E = self.bias_E
        super()._apply(fn, recurse)
        self.bias_E = bias_E.to(self.bias_E.device)
        return self

    def preference(self, probs_NE: Tensor) -> Tensor:
        """p + b."""
        return probs_NE.detach() + self.bias_E

    @torch.no_grad()
    def rebalance(self, chosen_E: Tensor) -> None:
        """Move each bias by `rate`, against its expert's load of this step.

        chosen_E: choices of each expert over the whole batch, all ranks', those dropped included.
        """
        load_E = chosen_E.to(self.bias_E)
        self.bias_E += self.rate * torch.sign(load_E.mean() - load_E)
