"""Forward and backward with parameters that are gathered unit by unit, as in ZeRO-3 and FSDP.

An interviewer asks: "The parameters do not fit on one GPU, so each of n ranks keeps an nth of them.
How can a layer be computed then? Write one forward and one backward pass. What is in memory at the
peak? And why does a step send three times the parameters, where data parallelism sends twice?"

Write `zero3_unit(units, x, loss_gradient, group)`: forward through the units and back, with the
parameters of two units in memory at most.

Contract
    units   a list, in the order of forward. Of each unit:
            unit.shard   (k,), this rank's part of its parameters: the r-th of n segments of
                         k = ceil(unit.numel / n); zeros are added at the end of the last
            unit.numel   how many parameters it has
            unit.forward(weights, x)                  its output, from all its weights (numel,)
            unit.backward(weights, x, y_gradient)     the gradients of x and of its weights,
                         (numel,), from the weights, its input x, and the gradient of its output. It
                         computes what it needs again, and keeps nothing
    x       the input of the first unit: this rank's share of the batch
    loss_gradient(y)     the gradient of this rank's loss, from the output of the last unit
    group   `group.rank`, `group.size`, `group.all_gather(x)`, which joins the ranks' tensors in
            rank order, `group.reduce_scatter(x)`, which gives rank r the r-th of n equal blocks of
            the sum, and `group.all_reduce(x)`. Those that add take op="mean", all take wait=False
    returns a list with the gradient of each unit's shard, (k,), in the order of units: of the mean
            over the ranks. Shards stay as they are

Budget, on every rank of two or more
    order   each unit is gathered before its use, and released after it: forward from the first to
            the last, backward from the last to the first, each unit once in either
    memory  the weights of two units at a time, whether in use, gathered in advance or not yet
            released; and the whole gradient of one unit, or of two
    sent    3 (n-1) k numbers for each unit: an all_gather on a ring sends (n-1) k, a reduce_scatter
            as much, an all_reduce of n k numbers twice as much

A tensor is released when nobody has it any more: neither a name, nor a list, nor a view of it.
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
    """The gradient of each unit's shard, of the mean over the ranks.

    Wire, on a ring: 3(n-1)/n of the parameters' bytes.
    """
    ### BEGIN SOLUTION
    inputs = []
    for unit in units:
        inputs.append(x)
        # Nobody has the weights but this call: they are released as it returns.
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        padding = (0, group.size * unit.shard.numel() - unit.numel)
        of_shards.append(group.reduce_scatter(pad(of_weights, padding), op="mean"))
    return of_shards[::-1]
    ### END SOLUTION
