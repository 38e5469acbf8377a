"""Mutant: pads dim 0 of x as it is.

outcome: "over budget"
diagnosis: "pads whole rows"
"""

import torch


def reduce_scatter_all_gather(x, group):
    rows = x if x.dim() else x[None]
    padding = rows.new_zeros(-len(rows) % group.size, *rows.shape[1:])
    total = group.all_gather(group.reduce_scatter(torch.cat([rows, padding])))
    return total[: len(rows)].view(x.shape)
