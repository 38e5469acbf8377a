"""One step of ZeRO-1.

An interviewer asks: "Eight data-parallel ranks hold the same Adam states eight times. Store each
number once. Write the step. What does each rank send, compared with the all-reduce of plain data
parallelism? What if eight does not divide the number of parameters?"

Write `zero1_step(parameters, gradients, optimizer, group)`. It averages the gradients over the
ranks, updates this rank's shard of the parameters with this rank's optimizer, and gives every rank
all updated parameters.

Contract
    parameters  shape (numel,), numel >= 1: all parameters of the model in one flat tensor, the same
                on every rank. Update them in place: the model's layers are views of this tensor
    gradients   shape (numel,): the gradients of this rank's share of the batch. All shares have the
                same size, so the gradient of the batch is the mean over the ranks. You may
                overwrite them
    optimizer   `optimizer.step(weights, gradients)` makes one step of Adam on flat tensors of the
                same size k and updates `weights` in place. Its first call creates the states, two
                numbers for each of the k weights. Later steps must pass the same k weights
    group       `group.rank`, `group.size`, and three collectives:
                - `all_reduce(x)` returns the sum over the ranks
                - `reduce_scatter(x)` cuts the sum into n equal blocks and returns block `rank`;
                  n must divide the size of x
                - `all_gather(x)` concatenates the ranks' tensors in rank order; all have one size
                The first two take op="mean" for the mean instead of the sum
    returns     nothing

All tensors have the same dtype, and numbers travel in this dtype. n is group.size, and it need not
divide numel.

Budget, on every rank, with k = ceil(numel / n)
    states      2 k numbers
    sent        2 (n-1) k numbers per step. Collectives count as on a ring, where x has D bytes:
                all_reduce sends 2(n-1)/n D, reduce_scatter (n-1)/n D, all_gather (n-1) D
"""

from typing import Protocol

import torch
from torch.nn.functional import pad

from labkit.comm import Group


class Optimizer(Protocol):
    def step(self, weights: torch.Tensor, gradients: torch.Tensor) -> None: ...


def zero1_step(
    parameters: torch.Tensor, gradients: torch.Tensor, optimizer: Optimizer, group: Group
) -> None:
    """Update `parameters` by one optimizer step with the mean of the ranks' gradients.

    Sent, on a ring: (n-1)/n of the gradients' bytes, then (n-1)/n of the parameters' bytes.
    """
    ### BEGIN SOLUTION
    padding = (0, -parameters.numel() % group.size)  # zeros at the end, removed after the gather
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    shard = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(shard, gradient)
    parameters.copy_(group.all_gather(shard)[: parameters.numel()])
    ### END SOLUTION
