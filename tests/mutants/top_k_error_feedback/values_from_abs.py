"""Mutant: sends the magnitudes that topk returns.

outcome: "wrong"
diagnosis: "loses the signs"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    values, indices = due.abs().topk(k)
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
