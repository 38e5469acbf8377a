"""Mutant: a rank without examples has no loss to reduce.

outcome: "hung"
diagnosis: "a collective that not every rank calls"
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
    grad_scale = group.all_reduce(grad_scale) / count
    grad_shift = group.all_reduce(grad_shift) / count
    if len(x):
        loss = group.all_reduce(loss)
    loss = loss / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
