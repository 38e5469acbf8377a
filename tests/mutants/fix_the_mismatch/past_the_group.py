"""Mutant: calls torch.distributed, where nobody compares what the ranks mean.

outcome: "wrong"
diagnosis: "communicates past the group"
"""

import torch
import torch.distributed as dist

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))
    loss = group.all_reduce(loss) / count
    grad_scale = group.all_reduce(grad_scale) / count
    dist.all_reduce(grad_shift)
    grad_shift = grad_shift / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
