"""Mutant: makes its buffer as long as the segment that it sends, not as the one that arrives.

outcome: "crashed"
diagnosis: "receives into a buffer of another size"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)

    for step in range(n - 1):
        sent = segments[(rank - step) % n]
        outgoing = group.isend(sent, right)
        incoming = group.irecv(torch.empty_like(sent), left)
        segments[(rank - step - 1) % n].add_(incoming.wait())
        outgoing.wait()

    for step in range(n - 1):
        outgoing = group.isend(segments[(rank + 1 - step) % n], right)
        incoming = group.irecv(segments[(rank - step) % n], left)
        incoming.wait()
        outgoing.wait()
    return total.view(x.shape)
