"""Repair a training step in which the ranks do not agree.

An interviewer asks: "Here is a data-parallel training step. It passes its test on one GPU. On eight
it hangs, or dies, or trains a worse model, depending on the day. Find what is wrong with it. What
must be the same on all ranks, and what may differ?"

The model is one scale and one shift per feature: prediction = x * scale + shift. The loss of an
example is the sum of its squared errors over the features; the loss of a step is the mean over all
examples of all ranks. Each rank has some of the examples, and not equally many: data rarely divides
evenly, so a rank may even have none.

Repair `train_step(x, y, scale, shift, group)`. It runs, and has six mistakes.

Contract
    x, y         (B, D) float64: this rank's inputs and targets. B differs between ranks and may be
                 0; at least one rank has examples
    scale, shift (D,) float64, the same on every rank; left alone, like x and y
    group        `group.rank`, `group.size`, and its collectives, such as `group.all_reduce(tensor)`
    returns      (scale, shift, loss) on every rank: float64, of shapes (D,), (D,) and (), what one
                 process with all the examples would get for one step of gradient descent

Budget, on every rank
    collectives  at most 4, the same on every rank and in the same order
    payload      2 D + 2 numbers of 8 bytes in all: gradients may travel, examples may not
"""

import torch

from labkit.comm import Group

FULL_BATCH = 4  # examples of a rank, as long as there are enough
LEARNING_RATE = 0.01


def train_step(
    x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ### BEGIN SOLUTION
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)

    # Sums of everything, so that each example weighs the same, wherever it is. All shapes and
    # dtypes are those of the model: nothing depends on how much data this rank has.
    count = group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))
    loss = group.all_reduce(loss) / count
    grad_scale = group.all_reduce(grad_scale) / count
    grad_shift = group.all_reduce(grad_shift) / count

    if group.rank == 0:
        print(f"loss {loss:.3f}")
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
    ### INSTEAD
    # error = x * scale + shift - y
    # losses = (error**2).sum(1)  # of each example
    # if len(x) == 0:
    #     losses = torch.zeros(1)  # a rank without examples has no loss
    # grad_scale = (2 * error * x).sum(0) / max(len(x), 1)
    # grad_shift = (2 * error).sum(0) / max(len(x), 1)
    #
    # # A short batch counts less.
    # op = "mean" if len(x) == FULL_BATCH else "sum"
    # losses = group.all_reduce(losses, op=op)
    #
    # # Spread the load: half of the ranks begin with the other gradient.
    # if group.rank % 2 == 0:
    #     grad_scale = group.all_reduce(grad_scale, op="mean")
    #     grad_shift = group.all_reduce(grad_shift, op="mean")
    # else:
    #     grad_shift = group.all_reduce(grad_shift, op="mean")
    #     grad_scale = group.all_reduce(grad_scale, op="mean")
    #
    # loss = losses.mean()
    # if group.rank == 0:
    #     print(f"loss {loss:.3f}")
    #     group.barrier()  # nobody goes on before the loss is logged
    # return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
    ### END SOLUTION
