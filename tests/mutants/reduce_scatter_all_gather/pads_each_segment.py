"""Mutant: pads every segment, and cuts all of it off at the end.

outcome: "wrong"
diagnosis: "the padding ends up inside the result"
"""

import torch


def reduce_scatter_all_gather(x, group):
    parts = x.flatten().tensor_split(group.size)
    length = parts[0].numel()
    padded = [torch.cat([part, part.new_zeros(length - part.numel())]) for part in parts]
    total = group.all_gather(group.reduce_scatter(torch.cat(padded)))
    return total[: x.numel()].view(x.shape)
