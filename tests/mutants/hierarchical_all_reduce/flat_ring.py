"""Mutant: one ring over all ranks of all hosts.

outcome: "over budget"
diagnosis: "a flat ring over both tiers"
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
    total = x.flatten().clone()
    segments = total.tensor_split(group.size)
    reduce_scatter(segments, range(group.size), group)
    all_gather(segments, range(group.size), group)
    return total.view(x.shape)
