"""Mutant: negative entries never are among the largest.

outcome: "wrong"
diagnosis: "takes the largest, and not the largest in magnitude"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    values, indices = due.topk(k)
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
