"""Mutant: passes every rank's tensor around, and adds them all up.

outcome: "over budget"
diagnosis: "gathers everything, then adds"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total, travelling = x.clone(), x
    for _ in range(n - 1):
        outgoing = group.isend(travelling, right)
        travelling = group.irecv(torch.empty_like(x), left).wait()
        outgoing.wait()
        total += travelling
    return total
