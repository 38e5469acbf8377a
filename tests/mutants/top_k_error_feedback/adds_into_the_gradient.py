"""Mutant: adds what is owed to the gradient in place.

outcome: "wrong"
diagnosis: "changes its input"
"""


def compress(gradient, owed, k):
    gradient += owed
    indices = gradient.abs().topk(k).indices
    values = gradient[indices]
    left = gradient.clone()
    left[indices] = 0
    return indices, values, left


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
