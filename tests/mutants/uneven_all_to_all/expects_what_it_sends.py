"""Mutant: receives from each rank as many rows as it sends there.

outcome: "crashed"
diagnosis: "takes what it sends for what it receives"
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
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    splits = counts.tolist()
    exchange(x.split(splits), result.split(splits), group)
    return result
