"""Mutant: sends each row in a message of its own.

outcome: "over budget"
diagnosis: "a message for every row"
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
    outgoing, incoming = x.split(counts.tolist()), result.split(receive_counts.tolist())
    sending, receiving = [], []
    for peer in range(group.size):
        if peer == group.rank:
            incoming[peer].copy_(outgoing[peer])
        else:
            sending += [group.isend(row, peer) for row in outgoing[peer]]
            receiving += [group.irecv(row, peer) for row in incoming[peer]]
    for pending in [*receiving, *sending]:
        pending.wait()
    return result
