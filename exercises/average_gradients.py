"""Average the gradients of a module over the ranks.

An interviewer asks: "Every rank has the same model and has run backward on its own part of the
batch. What is missing before optimizer.step()? Write it. Which parameters does it concern, and what
if the loss of one rank did not use some of them?"

Write `average_gradients(module, group)`: afterwards `parameter.grad` is the mean over the ranks,
for every parameter that is trained.

Contract
    module  an nn.Module after backward; parameters of any shape, float32, float64 or bfloat16
            frozen: requires_grad is False and there is no gradient; that stays so
            tied: two names of one parameter, with one gradient
            unused: on some ranks the loss did not use a parameter, so that its grad is None there;
            that counts as zeros, and on every rank grad is the mean afterwards, this one too
            The ranks agree on names, shapes, dtypes, and on what is frozen and tied; not on what is
            unused. At least one rank has a gradient for each parameter that is trained.
    group   `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum; with
            `out=tensor` it is left there, with `op="mean"` it is the mean
    returns nothing; the values of parameters are left alone

Budget, on every rank
    collectives  at most one per parameter that is trained
    payload      no more bytes than the gradients have, and no fewer digits; a tied parameter counts
                 once
"""

import torch
from torch import nn

from labkit.comm import Group


def average_gradients(module: nn.Module, group: Group) -> None:
    """Replace the gradient of each trained parameter by its mean over the ranks of `group`.

    Wire: 2(n-1)/n of the gradients' bytes per rank, in one all-reduce per parameter.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
