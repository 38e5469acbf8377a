"""Mutant: rank 0 hands the count out, while the others reduce it.

outcome: "wrong"
diagnosis: "ranks call different operations"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = torch.tensor(float(len(x)), dtype=torch.float64)
    count = group.broadcast(count, 0) if group.rank == 0 else group.all_reduce(count)
    loss = group.all_reduce(loss) / count
    grad_scale = group.all_reduce(grad_scale) / count
    grad_shift = group.all_reduce(grad_shift) / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
