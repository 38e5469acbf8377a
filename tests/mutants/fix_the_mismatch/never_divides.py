"""Mutant: sums everything, and forgets that the loss is a mean.

outcome: "wrong"
diagnosis: "never divides"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    loss = group.all_reduce(loss)
    grad_scale = group.all_reduce(grad_scale)
    grad_shift = group.all_reduce(grad_shift)
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
