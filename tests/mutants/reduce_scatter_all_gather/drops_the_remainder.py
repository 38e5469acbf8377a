"""Mutant: cuts off what n does not divide, and never adds it up.

outcome: "wrong"
diagnosis: "drops the remainder"
"""


def reduce_scatter_all_gather(x, group):
    flat = x.flatten().clone()
    covered = flat.numel() // group.size * group.size
    flat[:covered] = group.all_gather(group.reduce_scatter(flat[:covered]))
    return flat.view(x.shape)
