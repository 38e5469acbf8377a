"""Mutant: sends every rank all of its counts, where one of them would do.

outcome: "over budget"
diagnosis: "more than one number besides the rows"
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
    receive_counts = matrix[:, group.rank]
    result = x.new_empty(int(receive_counts.sum()), *x.shape[1:])
    exchange(x.split(counts.tolist()), result.split(receive_counts.tolist()), group)
    return result
