"""ZeRO-3 in the fewest lines: parameters are gathered only while they are used. The first rung.

    forward    gather 0 | compute 0 | gather 1 | compute 1 | ...        each released after its use
    backward   gather 1 | compute 1 | reduce-scatter 1 | gather 0 | ...

Layout: a unit is a layer. Its parameters, gradients and optimizer states are sharded: 1/n on each
rank. Its full weights are in memory only while it computes.
Sent: 3(n-1)/n of the parameters' bytes per step: two all-gathers and a reduce-scatter. Every rank
waits for each of them: nothing overlaps.
Papers: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 5.3; Zhao et al., "PyTorch FSDP",
arXiv:2304.11277.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn.functional import pad

from labkit.comm import Group


class Unit(Protocol):
    """A layer, and this rank's shard of its `numel` parameters, padded with zeros."""

    shard: torch.Tensor
    numel: int

    def forward(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the output."""

    def backward(
        self, weights: torch.Tensor, x: torch.Tensor, y_gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of x and of the weights."""


def zero3_unit(
    units: Sequence[Unit],
    x: torch.Tensor,
    loss_gradient: Callable[[torch.Tensor], torch.Tensor],
    group: Group,
) -> list[torch.Tensor]:
    """Return the gradient of each unit's shard, averaged over the ranks.

    Sent, on a ring: 3(n-1)/n of the parameters' bytes.
    """
    inputs = []
    for unit in units:
        inputs.append(x)
        # No variable refers to the gathered weights, so they are freed when forward returns.
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    gradient = loss_gradient(x)
    shard_gradients = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        gradient, whole = unit.backward(group.all_gather(unit.shard)[: unit.numel], x, gradient)
        padding = (0, group.size * unit.shard.numel() - unit.numel)
        shard_gradients.append(group.reduce_scatter(pad(whole, padding), op="mean"))
    return shard_gradients[::-1]
