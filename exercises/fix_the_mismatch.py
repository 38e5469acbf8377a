"""Repair a training step in which the ranks do not agree.

An interviewer asks: "Here is a data-parallel training step. It passes its test on one GPU. On eight
it hangs, or dies, or trains a worse model, depending on the day. Find what is wrong with it. What
must be the same on all ranks, and what may differ?"

The model has one scale and one shift per feature: prediction = x * scale + shift. One process with
all examples of all ranks in x and y, N of them, would compute:

    e         = x * scale + shift - y
    loss      = (e * e).sum() / N
    new scale = scale - LEARNING_RATE * (2 * e * x).sum(0) / N
    new shift = shift - LEARNING_RATE * (2 * e).sum(0) / N

The ranks have different numbers of examples, because data rarely divides evenly. A rank may have
none.

Repair `train_step(x, y, scale, shift, group)`: every rank returns what that one process computes.
The code below has six mistakes. One rank alone does not show them. You may also rewrite it.

Contract
    x, y         (B, D) float64: this rank's inputs and targets. B differs between ranks and may be
                 0. A rank knows only its own B. At least one rank has examples
    scale, shift (D,) float64: the parameters, the same on every rank. Do not change x, y, scale or
                 shift: return new tensors
    group        `group.rank`, `group.size`, and its collectives. `group.all_reduce(tensor)` returns
                 the sum over the ranks, with op="mean" the mean
    returns      (scale, shift, loss), the same on every rank: the new parameters, and the loss
                 before the step. They are float64, of shapes (D,), (D,) and (). Only rounding may
                 differ from one process

Budget, on every rank
    collectives  at most 4. Every rank makes the same collectives in the same order
    payload      at most 2 D + 2 numbers of 8 bytes in all: two gradients, the loss and the number
                 of examples. The examples themselves do not travel
"""

import torch

from labkit.comm import Group

FULL_BATCH = 4  # examples in a normal batch; any other number can occur
LEARNING_RATE = 0.01


def train_step(
    x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    error = x * scale + shift - y
    losses = (error**2).sum(1)  # one per example
    if len(x) == 0:
        losses = torch.zeros(1)  # a rank without examples has no loss
    grad_scale = (2 * error * x).sum(0) / max(len(x), 1)
    grad_shift = (2 * error).sum(0) / max(len(x), 1)

    # A short batch has less weight.
    op = "mean" if len(x) == FULL_BATCH else "sum"
    losses = group.all_reduce(losses, op=op)

    # Spread the load: odd ranks start with the other gradient.
    if group.rank % 2 == 0:
        grad_scale = group.all_reduce(grad_scale, op="mean")
        grad_shift = group.all_reduce(grad_shift, op="mean")
    else:
        grad_shift = group.all_reduce(grad_shift, op="mean")
        grad_scale = group.all_reduce(grad_scale, op="mean")

    loss = losses.mean()
    if group.rank == 0:
        print(f"loss {loss:.3f}")
        group.barrier()  # no rank continues before the loss is logged
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
