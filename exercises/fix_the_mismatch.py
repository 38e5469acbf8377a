"""Repair a training step in which the ranks do not agree.

An interviewer asks: "Here is a data-parallel training step. It passes its test on one GPU. On eight
it hangs, or dies, or trains a worse model, depending on the day. Find what is wrong with it. What
must be the same on all ranks, and what may differ?"

The model has one scale and one shift per feature: prediction = x * scale + shift. The loss of one
example is the sum of its squared errors over the features. The loss of a step is the mean over all
examples of all ranks. The ranks have different numbers of examples, because data rarely divides
evenly. A rank may have no examples.

Repair `train_step(x, y, scale, shift, group)`. The code below has six mistakes. One rank alone does
not show them.

Contract
    x, y         (B, D) float64: this rank's inputs and targets. B differs between ranks and may be
                 0. At least one rank has examples
    scale, shift (D,) float64: the parameters, the same on every rank. Do not change x, y, scale or
                 shift: return new tensors
    group        `group.rank`, `group.size`, and its collectives, such as `group.all_reduce(tensor)`
    returns      (scale, shift, loss) on every rank: the parameters after one step of gradient
                 descent, and the loss before it. They are float64, of shapes (D,), (D,) and (), and
                 what one process with all the examples computes. Only rounding may differ

Budget, on every rank
    collectives  at most 4. Every rank makes the same collectives in the same order
    payload      at most 2 D + 2 numbers of 8 bytes in all. Gradients may travel, examples may not
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
