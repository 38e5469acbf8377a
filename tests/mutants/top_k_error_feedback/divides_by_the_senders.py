"""Mutant: takes the mean over those ranks that have sent an entry.

outcome: "wrong"
diagnosis: "divides by those that have sent it"
"""

import torch


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    count = values.new_zeros(numel).index_add_(0, all_indices, torch.ones_like(all_values))
    return total / count.clamp(min=1)
