"""Mutant: takes a functional collective, which no patch of torch.distributed sees.

outcome: "wrong"
diagnosis: "calls a library collective"
"""

import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def ring_all_reduce(x, group):
    return functional.all_reduce(x.clone(), "sum", dist.group.WORLD)
