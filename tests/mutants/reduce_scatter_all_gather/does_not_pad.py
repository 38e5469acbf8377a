"""Mutant: leaves sizes that n does not divide to reduce_scatter.

outcome: "crashed"
diagnosis: "crashes where n does not divide the size"
"""


def reduce_scatter_all_gather(x, group):
    return group.all_gather(group.reduce_scatter(x.flatten())).view(x.shape)
