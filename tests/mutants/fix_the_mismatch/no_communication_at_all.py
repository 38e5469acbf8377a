"""Mutant: nothing can mismatch where nothing is sent.

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
    count = max(len(x), 1)
    loss, grad_scale, grad_shift = loss / count, grad_scale / count, grad_shift / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
