"""Accumulate gradients over microbatches, and communicate once.

An interviewer asks: "The batch that you want does not fit into memory, so each rank processes its
share in four microbatches. Write the backward passes of one optimizer step. How often do you
communicate, and what do you divide by? What if all four losses are added before one backward?"

Write `accumulate_without_sync(module, loss_fn, microbatches, group)`. Afterwards each
`parameter.grad` is the gradient of the mean loss over all microbatches of all ranks.

Contract
    module        an nn.Module, the same on every rank. Every parameter is trained, and every loss
                  uses it. No parameter has a gradient yet
    loss_fn       loss_fn(module, microbatch) returns the mean loss over the examples of a
                  microbatch, as a tensor to call backward() on
    microbatches  this rank's list of at least one. All ranks have the same number of microbatches;
                  all microbatches have the same number of examples
    group         `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum.
                  With `out=tensor` the sum is left in `tensor`; with `op="mean"` it is the mean
    returns       nothing. The values of the parameters do not change

Budget, on every rank
    collectives   at most one per parameter, whatever the number of microbatches
    payload       at most the bytes of the gradients
    memory        the activations of one microbatch at a time
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from labkit.comm import Group

LossFn = Callable[[nn.Module, Any], torch.Tensor]


def accumulate_without_sync(
    module: nn.Module, loss_fn: LossFn, microbatches: Sequence[Any], group: Group
) -> None:
    """Leave in each parameter the gradient of the mean over all microbatches of all ranks.

    Wire: each rank sends 2(n-1)/n of the gradients' bytes, whatever the number of microbatches.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
