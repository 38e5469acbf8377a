"""Data parallelism in the fewest lines: one all-reduce per gradient. The first rung.

    rank 0   w -> forward, backward on sequences 0 1 -> g0 -+
    rank 1   w -> forward, backward on sequences 2 3 -> g1 -+-> all-reduce: their mean -> the same w
    rank 2   w -> forward, backward on sequences 4 5 -> g2 -+

    broadcast_parameters(module, world)      once
    loss(module, share).backward()           each step, on this rank's share of the batch
    average_gradients(module, world)
    optimizer.step()                         the same update on every rank: parameters stay equal

Layout: parameters, gradients and optimizer states are whole on every rank. The batch is sharded, in
shares of equal size, because the mean gives every rank the same weight.
Sent: 2(n-1)/n of the gradients' bytes per rank and step, in one message per parameter.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.1.
"""

import torch
from torch import nn

from labkit.comm import Group


def broadcast_parameters(module: nn.Module, group: Group) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for x in (*module.parameters(), *module.buffers()):
        group.broadcast(x.data, root=0, out=x.data)


def average_gradients(module: nn.Module, group: Group) -> None:
    """Replace the gradient of each trained parameter by its mean over the ranks of `group`.

    Wire: each rank sends 2(n-1)/n of the gradients' bytes, in one all-reduce per parameter.
    """
    for parameter in module.parameters():  # yields a tied parameter once
        if not parameter.requires_grad:  # equal on all ranks, unlike `grad is None`
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad /= group.size  # before the sum, which could overflow in float16
        group.all_reduce(parameter.grad, out=parameter.grad)
