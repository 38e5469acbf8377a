"""Mutant: sends every block as long as the longest, and returns them like that.

outcome: "wrong"
diagnosis: "padding in the result"
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
    longest = torch.empty_like(counts)
    exchange([counts.max()[None]] * n, longest.split(1), group)
    capacity = int(longest.max())
    padded = x.new_zeros(n, capacity, *x.shape[1:])
    for slot, block in zip(padded, x.split(counts.tolist())):
        slot[: len(block)] = block
    received = torch.empty_like(padded)
    exchange(padded, received, group)
    return received.flatten(0, 1)
