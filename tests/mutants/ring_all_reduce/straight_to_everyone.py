"""Mutant: sends each segment straight to the rank that adds it.

outcome: "wrong"
diagnosis: "not a ring"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    total = x.flatten().clone()
    segments = total.tensor_split(n)
    others = [other for other in range(n) if other != rank]
    sends = [group.isend(segments[other], other) for other in others]
    parts = [group.irecv(torch.empty_like(segments[rank]), other) for other in others]
    for part in parts:
        part.wait()
    for send in sends:
        send.wait()
    for part in parts:
        segments[rank].add_(part.wait())
    sends = [group.isend(segments[rank], other) for other in others]
    for pending in [group.irecv(segments[other], other) for other in others] + sends:
        pending.wait()
    return total.view(x.shape)
