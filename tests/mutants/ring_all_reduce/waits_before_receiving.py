"""Mutant: waits for its send before it posts the receive.

outcome: "hung"
diagnosis: "every rank is in send: nobody receives"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)

    for step in range(n - 1):
        ours = segments[(rank - step - 1) % n]
        group.isend(segments[(rank - step) % n], right).wait()
        ours += group.irecv(torch.empty_like(ours), left).wait()
    for step in range(n - 1):
        group.isend(segments[(rank + 1 - step) % n], right).wait()
        group.irecv(segments[(rank - step) % n], left).wait()
    return total.view(x.shape)
