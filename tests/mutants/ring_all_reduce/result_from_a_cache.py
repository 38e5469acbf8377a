"""Mutant: keeps one buffer per shape and dtype, and returns it on every call.

outcome: "wrong"
diagnosis: "returns the same memory again"
"""

import torch

BUFFERS = {}


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = BUFFERS.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
    total.copy_(x)
    segments = total.view(-1).tensor_split(n)

    for step in range(n - 1):
        ours = segments[(rank - step - 1) % n]
        outgoing = group.isend(segments[(rank - step) % n], right)
        ours += group.irecv(torch.empty_like(ours), left).wait()
        outgoing.wait()

    for step in range(n - 1):
        outgoing = group.isend(segments[(rank + 1 - step) % n], right)
        group.irecv(segments[(rank - step) % n], left).wait()
        outgoing.wait()
    return total
