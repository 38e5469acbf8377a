"""Mutant: joins what the others have sent, and nothing else.

outcome: "wrong"
diagnosis: "its own rows are missing"
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
    blocks = result.split(receive_counts.tolist())
    exchange(x.split(counts.tolist()), blocks, group)
    return torch.cat([block for rank, block in enumerate(blocks) if rank != group.rank])
