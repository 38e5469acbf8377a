"""Mutant: saves a collective by gathering places and values in one tensor of floats.

outcome: "wrong"
diagnosis: "loses places that are far out"
"""

import torch


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    packed = group.all_gather(torch.cat([indices.to(values.dtype), values]))
    places, theirs = packed.view(group.size, 2, -1).unbind(1)
    total = values.new_zeros(numel).index_add_(0, places.flatten().long(), theirs.flatten())
    return total / group.size
