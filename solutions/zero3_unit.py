"""Forward and backward with parameters that are gathered unit by unit, as in ZeRO-3 and FSDP.

An interviewer asks: "The parameters do not fit on one GPU, so each of n ranks keeps one nth of
them. How can a layer be computed? Write one forward and one backward pass. What is in memory at the
peak? And why does a step send three times the parameters, where data parallelism sends twice?"

Write `zero3_unit(units, x, loss_gradient, group)`. It runs forward through the units and backward
again, with the parameters of at most two units in memory, and returns the gradients of the shards.

Contract
    units   a list, in forward order. A unit is a layer or a block with:
            unit.shard   (k,), this rank's shard of the parameters: append zeros to the (numel,)
                         parameters up to n k numbers, cut them into n shards, take shard `rank`
            unit.numel   the number of parameters; k = ceil(unit.numel / n)
            unit.forward(weights, x)               returns the output, from all weights (numel,)
            unit.backward(weights, x, y_gradient)  returns two gradients: of x, and of the weights,
                         (numel,). It needs the weights, the unit's input x, and the gradient of
                         the unit's output. It recomputes everything else, and keeps nothing
    x       the input of the first unit: this rank's share of the batch. All shares have the same
            size
    loss_gradient(y)     returns the gradient of this rank's loss with respect to y, the output of
                         the last unit
    group   `group.rank`, `group.size`, and three collectives:
            - `all_gather(x)` concatenates the ranks' tensors in rank order
            - `reduce_scatter(x)` cuts the sum over the ranks into n equal blocks and returns block
              `rank`; n must divide the size of x
            - `all_reduce(x)` returns the sum over the ranks
            The last two take op="mean" for the mean. All take wait=False, and then return a Pending
    returns a list with the gradient of each unit's shard, (k,), in the order of `units`. It is the
            mean over the ranks, and zero where the shard has padding. Shards stay as they are

n is group.size. It need not divide numel.

Budget, on every rank, for n >= 2
    order   all units forward from the first to the last, then all backward from the last to the
            first. Each unit, the last too, is gathered once before its forward and again before its
            backward, and released after both
    memory  whenever a unit is used: the weights of at most two units, that is of this one and of
            the one before or after it; copies count. And at most two whole gradients; a padded copy
            counts as one. Shards, their gradients and activations are not counted
    sent    exactly 3 (n-1) k numbers per unit. On a ring an all_gather sends (n-1) k, a
            reduce_scatter of n k numbers as much, and an all_reduce of n k numbers twice as much

A tensor is released when nothing refers to it any more: no name, no list, and no view of it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn.functional import pad

from labkit.comm import Group


class Unit(Protocol):
    shard: torch.Tensor
    numel: int

    def forward(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor: ...

    def backward(
        self, weights: torch.Tensor, x: torch.Tensor, y_gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


def zero3_unit(
    units: Sequence[Unit],
    x: torch.Tensor,
    loss_gradient: Callable[[torch.Tensor], torch.Tensor],
    group: Group,
) -> list[torch.Tensor]:
    """Return the gradient of each unit's shard, averaged over the ranks.

    Sent, on a ring: 3(n-1)/n of the parameters' bytes.
    """
    ### BEGIN SOLUTION
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
    ### END SOLUTION
