"""Mutant: sends everything it has in each of 2(n-1) steps.

outcome: "over budget"
diagnosis: "sends the whole tensor in every step"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()

    for step in range(2 * (n - 1)):
        outgoing = group.isend(total, right)
        incoming = group.irecv(torch.empty_like(total), left).wait()
        outgoing.wait()
        if step < n - 1:
            s = (rank - step - 1) % n
        else:
            s = (rank - step + n - 1) % n
        ours, theirs = total.tensor_split(n)[s], incoming.tensor_split(n)[s]
        ours.copy_(ours + theirs if step < n - 1 else theirs)
    return total.view(x.shape)
