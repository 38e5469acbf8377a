"""Mutant: sends each segment in two halves.

outcome: "over budget"
diagnosis: "too many messages"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)
    for step in range(2 * (n - 1)):
        ours = segments[(rank - step - 1 if step < n - 1 else rank - step + n - 1) % n]
        sent = segments[(rank - step if step < n - 1 else rank - step + n) % n]
        outgoing = [group.isend(half, right) for half in sent.tensor_split(2)]
        buffers = torch.empty_like(ours).tensor_split(2)
        incoming = [group.irecv(half, left) for half in buffers]
        for half, pending in zip(ours.tensor_split(2), incoming, strict=True):
            half.copy_(half + pending.wait() if step < n - 1 else pending.wait())
        for pending in outgoing:
            pending.wait()
    return total.view(x.shape)
