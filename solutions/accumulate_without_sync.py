"""Accumulate gradients over microbatches, and communicate once.

An interviewer asks: "The batch that you want does not fit into memory, so each rank takes its part
in four microbatches. Write the backward passes of one optimizer step. How often do you communicate,
and what do you divide by? What if all four losses are added up before one backward?"

Write `accumulate_without_sync(module, loss_fn, microbatches, group)`: afterwards every
`parameter.grad` is the gradient of the mean loss over all microbatches of all ranks.

Contract
    module        an nn.Module, the same on every rank; each parameter is trained and used in every
                  loss. There are no gradients yet
    loss_fn       loss_fn(module, microbatch) is the mean loss over the examples of a microbatch, a
                  number to call backward() on
    microbatches  this rank's, a list of at least one; all ranks have equally many, and all
                  microbatches have the same number of examples
    group         `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum;
                  with `out=tensor` it is left there, with `op="mean"` it is the mean
    returns       nothing; the values of parameters are left alone

Budget, on every rank
    collectives   at most one per parameter, however many microbatches there are
    payload       no more bytes than the gradients have
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

    Wire: 2(n-1)/n of the gradients' bytes per rank, whatever the number of microbatches.
    """
    ### BEGIN SOLUTION
    for microbatch in microbatches:
        # backward adds to what is there, and lets go of this microbatch's activations.
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
    ### END SOLUTION
