"""Mutant: lets block s begin where it ends: its offsets do not start with 0.

outcome: "wrong"
diagnosis: "has rows for another rank"
"""

import torch


def exchange(outgoing, incoming, group):
    n, rank = group.size, group.rank
    incoming[rank].copy_(outgoing[rank])
    for step in range(1, n):
        destination, source = (rank + step) % n, (rank - step) % n
        sending = group.isend(outgoing[destination], destination)
        group.irecv(incoming[source], source).wait()
        sending.wait()


def uneven_all_to_all(x, counts, group):
    receive_counts = torch.empty_like(counts)
    exchange(counts.split(1), receive_counts.split(1), group)
    result = x.new_empty(int(receive_counts.sum()), *x.shape[1:])
    offsets = counts.cumsum(0).tolist()
    outgoing = [torch.roll(x, -start, 0)[:count] for start, count in zip(offsets, counts.tolist())]
    exchange(outgoing, result.split(receive_counts.tolist()), group)
    return result
