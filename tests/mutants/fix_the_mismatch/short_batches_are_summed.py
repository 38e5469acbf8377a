"""Mutant: averages over full batches and sums short ones.

outcome: "wrong"
diagnosis: "ranks reduce in different ways"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))
    op = "mean" if len(x) == FULL_BATCH else "sum"
    loss = group.all_reduce(loss, op=op) / count
    grad_scale = group.all_reduce(grad_scale) / count
    grad_shift = group.all_reduce(grad_shift) / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
