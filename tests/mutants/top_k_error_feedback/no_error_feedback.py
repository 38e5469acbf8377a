"""Mutant: what is not sent is forgotten.

outcome: "wrong"
diagnosis: "throws away what is left out"
"""

import torch


def compress(gradient, owed, k):
    indices = gradient.abs().topk(k).indices
    return indices, gradient[indices], torch.zeros_like(gradient)


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
