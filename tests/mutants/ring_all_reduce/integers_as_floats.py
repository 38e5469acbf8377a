"""Mutant: adds integers as floating-point numbers of the same width.

outcome: "wrong"
diagnosis: "loses digits on the way"
"""

import torch

SAME_WIDTH = {torch.int32: torch.float32, torch.int64: torch.float64}


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().to(SAME_WIDTH.get(x.dtype, x.dtype), copy=True)
    segments = total.tensor_split(n)

    for step in range(n - 1):
        ours = segments[(rank - step - 1) % n]
        outgoing = group.isend(segments[(rank - step) % n], right)
        ours += group.irecv(torch.empty_like(ours), left).wait()
        outgoing.wait()

    for step in range(n - 1):
        outgoing = group.isend(segments[(rank + 1 - step) % n], right)
        group.irecv(segments[(rank - step) % n], left).wait()
        outgoing.wait()
    return total.view(x.shape).to(x.dtype)
