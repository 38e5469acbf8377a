"""Mutant: finds the longest block of all, and sends every block as long as that.

outcome: "over budget"
diagnosis: "padding on the wire"
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
    n = group.size
    receive_counts = torch.empty_like(counts)
    exchange(counts.split(1), receive_counts.split(1), group)
    longest = torch.empty_like(counts)
    exchange([counts.max()[None]] * n, longest.split(1), group)
    capacity = int(longest.max())
    padded = x.new_zeros(n, capacity, *x.shape[1:])
    for slot, block in zip(padded, x.split(counts.tolist())):
        slot[: len(block)] = block
    received = torch.empty_like(padded)
    exchange(padded, received, group)
    return torch.cat([slot[:count] for slot, count in zip(received, receive_counts.tolist())])
