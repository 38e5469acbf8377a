"""Mutant: adds up, and does not divide.

outcome: "wrong"
diagnosis: "a sum instead of a mean"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    return values.new_zeros(numel).index_add_(0, all_indices, all_values)
