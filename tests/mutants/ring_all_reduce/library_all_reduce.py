"""Mutant: calls the group's all_reduce.

outcome: "wrong"
diagnosis: "calls a library collective"
"""


def ring_all_reduce(x, group):
    return group.all_reduce(x)
