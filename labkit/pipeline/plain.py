"""1F1B in plain sends and receives: one stage per rank, one step. The first rung.

    rank 0   F0 F1 F2       B0 F3    B1    B2    B3     F: take x from the rank before, send y on
    rank 1      F0 F1    B0 F2 B1 F3 B2       B3        B: take y's gradient from the rank after,
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3                 send x's to the rank before

Layout: rank r holds stage r of p, and activations of at most p - r of the m microbatches.
Wire: 2 m messages per boundary: a microbatch's output, shaped like its x, and the gradient of it.
Paper: Narayanan et al., PipeDream-Flush, arXiv:2006.09503.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.comm import Group


def one_f_one_b_schedule(rank: int, num_ranks: int, num_microbatches: int) -> Iterable[str]:
    """Yield the operations of one rank in order: "F3" is the forward of microbatch 3."""
    warmup = min(num_ranks - rank - 1, num_microbatches)  # one for each rank after this one
    for microbatch in range(warmup):
        yield f"F{microbatch}"
    for microbatch in range(warmup, num_microbatches):
        yield f"F{microbatch}"
        yield f"B{microbatch - warmup}"  # the oldest microbatch in flight
    for microbatch in range(num_microbatches - warmup, num_microbatches):
        yield f"B{microbatch}"


def pipeline_step(
    stage: nn.Module, loss: Callable[..., Tensor], x: Tensor, targets: Tensor, m: int, group: Group
) -> None:
    """Add the gradients of the batch's mean loss to the parameters of this rank's stage.

    loss: the mean over rows. x, targets: the whole batch. m: the number of microbatches.
    """
    inputs, rank, last = x.tensor_split(m), group.rank, group.size - 1
    held, sent = dict[int, Any](), []
    for operation in one_f_one_b_schedule(rank, group.size, m):
        i = int(operation[1:])
        if operation[0] == "F":
            x_i = inputs[i]
            if rank > 0:
                x_i = group.recv(torch.empty_like(x_i), rank - 1).requires_grad_()
            y_i = stage(x_i)
            if rank < last:  # not `send`: it could wait for a rank that is sending to this one
                sent.append(group.isend(y_i.detach(), rank + 1))
            else:
                y_i = loss(y_i, targets.tensor_split(m)[i]) * len(x_i) / len(x)
            held[i] = x_i, y_i
        else:
            x_i, y_i = held.pop(i)
            y_i.backward(None if rank == last else group.recv(torch.empty_like(y_i), rank + 1))
            if rank > 0:
                sent.append(group.isend(x_i.grad, rank - 1))
    for pending in sent:
        pending.wait()
