"""Mutant: sends everything to rank 0, which sorts it and sends each rank its rows.

outcome: "over budget"
diagnosis: "rows travel more than once"
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
    matrix = counts.new_empty(n, n)
    exchange([counts] * n, matrix, group)
    result = x.new_empty(int(matrix[:, group.rank].sum()), *x.shape[1:])
    if group.rank > 0:
        group.send(x, 0)
        return group.recv(result, 0)
    everything = [x]
    for rank in range(1, n):
        everything.append(group.recv(x.new_empty(int(matrix[rank].sum()), *x.shape[1:]), rank))
    blocks = [rows.split(row.tolist()) for rows, row in zip(everything, matrix)]
    dealt = [torch.cat(column) for column in zip(*blocks)]
    for rank in range(1, n):
        group.send(dealt[rank], rank)
    return dealt[0]
