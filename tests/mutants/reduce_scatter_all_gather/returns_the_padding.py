"""Mutant: never cuts the padding off.

outcome: "wrong"
diagnosis: "returns the padding, too"
"""

import torch


def reduce_scatter_all_gather(x, group):
    padding = x.new_zeros(-x.numel() % group.size)
    total = group.all_gather(group.reduce_scatter(torch.cat([x.flatten(), padding])))
    return total if len(padding) else total.view(x.shape)
