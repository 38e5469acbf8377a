"""Mutant: reduces a tensor with a number for each example, then takes the mean.

outcome: "wrong"
diagnosis: "ranks pass different shapes"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    losses = (error**2).sum(1)
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))
    loss = group.all_reduce(losses).sum() / count
    grad_scale = group.all_reduce(grad_scale) / count
    grad_shift = group.all_reduce(grad_shift) / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
