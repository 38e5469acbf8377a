"""Mutant: pads by n where nothing is left over.

outcome: "over budget"
diagnosis: "pads where nothing is left over"
"""

import torch


def reduce_scatter_all_gather(x, group):
    padding = x.new_zeros(group.size - x.numel() % group.size)
    total = group.all_gather(group.reduce_scatter(torch.cat([x.flatten(), padding])))
    return total[: x.numel()].view(x.shape)
