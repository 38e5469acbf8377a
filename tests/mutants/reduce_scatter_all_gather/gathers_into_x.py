"""Mutant: gathers into the flattened x, which is x itself.

outcome: "wrong"
diagnosis: "changes its input"
"""

import torch


def reduce_scatter_all_gather(x, group):
    padded = x.flatten()
    if x.numel() % group.size:
        padded = torch.cat([padded, x.new_zeros(-x.numel() % group.size)])
    group.all_gather(group.reduce_scatter(padded), out=padded)
    return padded[: x.numel()].clone().view(x.shape)
