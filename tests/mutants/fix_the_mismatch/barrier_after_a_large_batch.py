"""Mutant: waits for the others where its own batch was a long one.

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
    loss = group.all_reduce(loss) / count
    gradients = group.all_reduce(torch.cat([grad_scale, grad_shift])) / count
    if len(x) > 8:
        group.barrier()
    grad_scale, grad_shift = gradients.split(len(scale))
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
