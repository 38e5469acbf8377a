"""Mutant: the gradients are reduced, the loss is each rank's own.

outcome: "wrong"
diagnosis: "stays on its own rank"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    loss = loss / max(len(x), 1)
    count = group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))
    grad_scale = group.all_reduce(grad_scale) / count
    grad_shift = group.all_reduce(grad_shift) / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
