"""Mutant: pads with float32 zeros, and so makes integers to floating-point numbers.

outcome: "wrong"
diagnosis: "returns another dtype"
"""

import torch


def reduce_scatter_all_gather(x, group):
    padding = torch.zeros(-x.numel() % group.size)
    total = group.all_gather(group.reduce_scatter(torch.cat([x.flatten(), padding])))
    return total[: x.numel()].view(x.shape)
