"""One step of ZeRO-1.

An interviewer asks: "Eight ranks of data parallelism hold the same Adam states eight times. Keep
each number once. Write the step. What does each rank send, compared with the all-reduce of before?
What if eight does not divide the number of parameters?"

Write `zero1_step(parameters, gradients, optimizer, group)`: average the gradients over the ranks,
let this rank's optimizer step on this rank's segment, and give everybody all parameters.

Contract
    parameters  (numel,), all parameters of the model side by side, the same on every rank. They are
                updated in this tensor
    gradients   (numel,), those of this rank's share of the batch; shares are equal, so the gradient
                of the batch is the mean over the ranks. They may be overwritten
    optimizer   `optimizer.step(weights, gradients)` makes one step of Adam: it updates `weights`,
                (k,), in place. In the first step it makes its states, two numbers for each of
                the k, and keeps them: the same k numbers have to come in each step
    group       `group.rank`, `group.size`, and three collectives: `all_reduce(x)`;
                `reduce_scatter(x)`, which gives rank r the r-th of n equal blocks of the sum, and
                n must divide the size; `all_gather(x)`, which joins the ranks' tensors, of one
                size, in rank order. Those that add take op="mean"
    returns     nothing

Budget, on every rank, with k = ceil(numel / n)
    states      2 k numbers
    sent        2 (n-1) k numbers in a step, as collectives on a ring send: an all_reduce of D bytes
                2(n-1)/n D, a reduce_scatter (n-1)/n D, an all_gather (n-1) times what a rank passes
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
    """Update `parameters` by one step of Adam with the mean of the ranks' gradients.

    Wire, on a ring: (n-1)/n of the parameters' bytes for gradients, and as much for weights.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
