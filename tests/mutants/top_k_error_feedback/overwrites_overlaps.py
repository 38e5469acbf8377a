"""Mutant: adds with indices, which writes each place once.

outcome: "wrong"
diagnosis: "overwrites where ranks have chosen the same place"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    total = values.new_zeros(numel)
    total[group.all_gather(indices)] += group.all_gather(values)
    return total / group.size
