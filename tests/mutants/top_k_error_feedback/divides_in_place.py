"""Mutant: divides the caller's values before it gathers them.

outcome: "wrong"
diagnosis: "exchange changes what it is given"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    values /= group.size
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    return values.new_zeros(numel).index_add_(0, all_indices, all_values)
