"""Mutant: takes n steps in the first phase.

outcome: "over budget"
diagnosis: "a step too many"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)

    for step in range(n):
        ours = segments[(rank - step - 1) % n]
        outgoing = group.isend(segments[(rank - step) % n], right)
        incoming = group.irecv(torch.empty_like(ours), left)
        ours += incoming.wait()
        outgoing.wait()

    for step in range(n - 1):
        outgoing = group.isend(segments[(rank + 1 - step) % n], right)
        incoming = group.irecv(segments[(rank - step) % n], left)
        incoming.wait()
        outgoing.wait()
    return total.view(x.shape)
