"""ZeRO-1 in the fewest lines: one step of an optimizer whose states are sharded. The first rung.

    gradients         g0 g1 g2 | g0 g1 g2 | g0 g1 g2      all, from each rank's share of the batch
    reduce-scatter    G0       |    G1    |       G2      the means, on each rank its shard
    optimizer.step    w0'      |    w1'   |       w2'     needs the states of that shard only
    all-gather        w0'w1'w2'| w0'w1'w2'| w0'w1'w2'

An all-reduce is a reduce-scatter followed by an all-gather. ZeRO-1 steps the optimizer in between.

Layout: parameters and gradients are whole on every rank, in flat tensors. Optimizer states are
sharded: 1/n on each rank.
Sent: 2(n-1)/n of the parameters' bytes per step, as much as an all-reduce of the gradients.
Paper: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 5.1.
"""

from typing import Protocol

import torch
from torch.nn.functional import pad

from labkit.comm import Group


class Optimizer(Protocol):
    """An element-wise optimizer, such as Adam, with the states of one shard."""

    def step(self, weights: torch.Tensor, gradients: torch.Tensor) -> None:
        """Update `weights` in place."""


def zero1_step(
    parameters: torch.Tensor, gradients: torch.Tensor, optimizer: Optimizer, group: Group
) -> None:
    """Update `parameters` by one optimizer step with the mean of the ranks' gradients.

    Sent, on a ring: (n-1)/n of the gradients' bytes, then (n-1)/n of the parameters' bytes.
    """
    padding = (0, -parameters.numel() % group.size)  # zeros at the end, removed after the gather
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    shard = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(shard, gradient)
    parameters.copy_(group.all_gather(shard)[: parameters.numel()])
