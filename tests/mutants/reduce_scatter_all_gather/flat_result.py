"""Mutant: forgets the shape.

outcome: "wrong"
diagnosis: "returns another shape"
"""

import torch


def reduce_scatter_all_gather(x, group):
    padding = x.new_zeros(-x.numel() % group.size)
    total = group.all_gather(group.reduce_scatter(torch.cat([x.flatten(), padding])))
    return total[: x.numel()]
