"""Mutant: halves what travels, and rounds it.

outcome: "wrong"
diagnosis: "fewer digits than float64"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = torch.tensor([float(len(x))], dtype=torch.float64)
    packed = torch.cat([grad_scale, grad_shift, loss[None], count]).float()
    total = group.all_reduce(packed).double()
    total = total / total[-1]
    grad_scale, grad_shift = total[: len(scale)], total[len(scale) : -2]
    loss = total[-2]
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
