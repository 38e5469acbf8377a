"""Mutant: averages, as gradients are.

outcome: "wrong"
diagnosis: "an average instead of a sum"
"""

import torch


def reduce_scatter_all_gather(x, group):
    padding = x.new_zeros(-x.numel() % group.size)
    segment = group.reduce_scatter(torch.cat([x.flatten(), padding]))
    total = group.all_gather(segment)[: x.numel()] / group.size
    return total.to(x.dtype).view(x.shape)
