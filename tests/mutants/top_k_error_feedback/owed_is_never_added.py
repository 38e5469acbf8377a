"""Mutant: keeps what is left out of each gradient, and never sends it.

outcome: "wrong"
diagnosis: "never adds what is owed"
"""


def compress(gradient, owed, k):
    indices = gradient.abs().topk(k).indices
    values = gradient[indices]
    owed = owed + gradient
    owed[indices] -= values
    return indices, values, owed


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
