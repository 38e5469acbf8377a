"""Mutant: sums over examples, and takes the mean over ranks, as DDP does.

outcome: "wrong"
diagnosis: "divides by the wrong number"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    loss = group.all_reduce(loss, op="mean")
    grad_scale = group.all_reduce(grad_scale, op="mean")
    grad_shift = group.all_reduce(grad_shift, op="mean")
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
