"""Mutant: works out what is left before it adds what was owed.

outcome: "wrong"
diagnosis: "forgets what was owed before"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    left = gradient.clone()
    left[indices] -= values
    return indices, values, left


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
