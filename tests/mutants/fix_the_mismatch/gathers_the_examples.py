"""Mutant: pads every batch to the longest, gathers all examples, computes everything everywhere.

outcome: "over budget"
diagnosis: "sends more than gradients"
"""

import torch

FULL_BATCH = 4
LEARNING_RATE = 0.01


def train_step(x, y, scale, shift, group):
    longest = int(group.all_reduce(torch.tensor([len(x)]), op="max"))
    padded = torch.zeros(longest, 2 * len(scale) + 1, dtype=torch.float64)
    padded[: len(x)] = torch.cat([x, y, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    everything = group.all_gather(padded)
    everything = everything[everything[:, -1] == 1]
    x, y = everything[:, : len(scale)], everything[:, len(scale) : -1]
    error = x * scale + shift - y
    loss = (error**2).sum()
    grad_scale = (2 * error * x).sum(0)
    grad_shift = (2 * error).sum(0)
    count = len(x)
    loss, grad_scale, grad_shift = loss / count, grad_scale / count, grad_shift / count
    return scale - LEARNING_RATE * grad_scale, shift - LEARNING_RATE * grad_shift, loss
