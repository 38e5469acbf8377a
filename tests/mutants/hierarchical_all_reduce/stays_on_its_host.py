"""Mutant: reduces within each host, and never between them.

outcome: "wrong"
diagnosis: "the sum stays within the host"
"""

import torch


def reduce_scatter(parts, ranks, group):
    n, me = len(ranks), ranks.index(group.rank)
    for step in range(n - 1):
        ours = parts[(me - 2 - step) % n]
        outgoing = group.isend(parts[(me - 1 - step) % n], ranks[(me + 1) % n])
        ours += group.irecv(torch.empty_like(ours), ranks[(me - 1) % n]).wait()
        outgoing.wait()


def all_gather(parts, ranks, group):
    n, me = len(ranks), ranks.index(group.rank)
    for step in range(n - 1):
        outgoing = group.isend(parts[(me - step) % n], ranks[(me + 1) % n])
        group.irecv(parts[(me - 1 - step) % n], ranks[(me - 1) % n]).wait()
        outgoing.wait()


def hierarchical_all_reduce(x, ranks_per_host, group):
    first = group.rank // ranks_per_host * ranks_per_host
    fast = range(first, first + ranks_per_host)
    total = x.flatten().clone()
    segments = total.tensor_split(ranks_per_host)
    reduce_scatter(segments, fast, group)
    all_gather(segments, fast, group)
    return total.view(x.shape)
