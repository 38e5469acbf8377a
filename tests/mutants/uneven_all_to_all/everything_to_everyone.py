"""Mutant: sends all rows to all ranks, and lets them pick theirs.

outcome: "over budget"
diagnosis: "sends everything to everyone"
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
    matrix = counts.new_empty(n, n)
    exchange([counts] * n, matrix, group)
    everything = [x.new_empty(int(row.sum()), *x.shape[1:]) for row in matrix]
    exchange([x] * n, everything, group)
    blocks = [rows.split(row.tolist()) for rows, row in zip(everything, matrix)]
    return torch.cat([block[rank] for block in blocks])
