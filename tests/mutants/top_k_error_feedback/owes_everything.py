"""Mutant: does not take off what it sends.

outcome: "wrong"
diagnosis: "still owes what it has sent"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    return indices, due[indices], due


def exchange(indices, values, numel, group):
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
