"""Average the gradients of a module over the ranks.

An interviewer asks: "Every rank has the same model and has run backward on its own share of the
batch. What is missing before optimizer.step()? Write it. Which parameters does it concern? What if
the loss of one rank did not use some of them?"

Write `average_gradients(module, group)`. Afterwards the `grad` of every trained parameter is the
mean of its gradients over the ranks.

Contract
    module  an nn.Module after backward. Parameters have any shape; their dtypes are float32,
            float64 or bfloat16, also mixed
            trained: requires_grad is True
            frozen: requires_grad is False and grad is None; both stay so
            tied: one parameter with two names; it has one gradient
            unused: the loss of some rank did not use a trained parameter, so its grad is None on
            that rank. It counts as zeros there. Afterwards grad is the mean on every rank,
            including that one
            All ranks have the same names, shapes and dtypes, and the same frozen and tied
            parameters. Which parameters are unused differs by rank. Each trained parameter has a
            gradient on at least one rank
    group   `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum. With
            `out=tensor` the sum is left in `tensor`; with `op="mean"` it is the mean
    returns nothing. The values of the parameters do not change

Budget, on every rank
    collectives  at most one all-reduce per trained parameter; a tied parameter counts once
    payload      at most the bytes of the gradients: each travels once, in its own dtype
"""

import torch
from torch import nn

from labkit.comm import Group


def average_gradients(module: nn.Module, group: Group) -> None:
    """Replace the gradient of each trained parameter by its mean over the ranks of `group`.

    Wire: each rank sends 2(n-1)/n of the gradients' bytes, in one all-reduce per parameter.
    """
    ### BEGIN SOLUTION
    for parameter in module.parameters():  # yields a tied parameter once
        if not parameter.requires_grad:  # equal on all ranks, unlike `grad is None`
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad /= group.size  # before the sum, which could overflow in float16
        group.all_reduce(parameter.grad, out=parameter.grad)
    ### END SOLUTION
