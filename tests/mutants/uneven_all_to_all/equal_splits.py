"""Mutant: cuts x into n equal parts, and expects parts like its own.

outcome: "crashed"
diagnosis: "assumes equal splits"
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
    blocks = x.tensor_split(group.size)
    result = [torch.empty_like(block) for block in blocks]
    exchange(blocks, result, group)
    return torch.cat(result)
