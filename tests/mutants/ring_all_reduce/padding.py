"""Mutant: pads x to a size that n divides.

outcome: "over budget"
diagnosis: "padding on the wire"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    length = -(-x.numel() // n)
    total = x.new_zeros(n * length)
    total[: x.numel()] = x.flatten()
    segments = total.view(n, length)

    for step in range(n - 1):
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
    return total[: x.numel()].view(x.shape).clone()
