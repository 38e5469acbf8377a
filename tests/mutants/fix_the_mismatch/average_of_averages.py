"""Mutant: each rank divides by its own number of examples, and the means are averaged.

outcome: "wrong"
diagnosis: "an average of averages"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = max(len(x), 1)
    loss = group.all_reduce(loss / count, op="mean")
    grad_scale = group.all_reduce(grad_scale / count, op="mean")
    grad_shift = group.all_reduce(grad_shift / count, op="mean")
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
