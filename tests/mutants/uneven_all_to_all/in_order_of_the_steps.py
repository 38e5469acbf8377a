"""Mutant: puts its own rows first, and then block after block as they come.

outcome: "wrong"
diagnosis: "blocks in the wrong order"
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
    n, rank = group.size, group.rank
    receive_counts = torch.empty_like(counts)
    exchange(counts.split(1), receive_counts.split(1), group)
    blocks = x.split(counts.tolist())
    result = [blocks[rank]]
    for step in range(1, n):
        destination, source = (rank + step) % n, (rank - step) % n
        sending = group.isend(blocks[destination], destination)
        buffer = x.new_empty(int(receive_counts[source]), *x.shape[1:])
        result.append(group.irecv(buffer, source).wait())
        sending.wait()
    return torch.cat(result)
