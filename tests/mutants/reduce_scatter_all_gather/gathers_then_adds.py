"""Mutant: gathers every whole tensor, and each rank adds them up.

outcome: "wrong"
diagnosis: "gathers everything, then adds"
"""


def reduce_scatter_all_gather(x, group):
    return group.all_gather(x[None]).sum(0).to(x.dtype)
