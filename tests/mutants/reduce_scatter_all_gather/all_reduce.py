"""Mutant: calls the all_reduce that it should build.

outcome: "wrong"
diagnosis: "calls another operation than the two"
"""


def reduce_scatter_all_gather(x, group):
    return group.all_reduce(x)
