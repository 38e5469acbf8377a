"""Mutant: half of the ranks reduce the gradients in another order.

outcome: "wrong"
diagnosis: "ranks make the same calls in another order"
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
    if group.rank % 2 == 0:
        grad_scale = group.all_reduce(grad_scale) / count
        grad_shift = group.all_reduce(grad_shift) / count
    else:
        grad_shift = group.all_reduce(grad_shift) / count
        grad_scale = group.all_reduce(grad_scale) / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
