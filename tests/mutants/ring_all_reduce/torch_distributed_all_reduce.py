"""Mutant: calls torch.distributed behind the group's back.

outcome: "wrong"
diagnosis: "calls a library collective"
"""

from torch.distributed import all_reduce


def ring_all_reduce(x, group):
    total = x.clone()
    if group.size > 1:
        try:
            all_reduce(total)
        except RuntimeError:
            pass
    return total
