"""Mutant: takes the host for the place, and the place for the host.

outcome: "over budget"
diagnosis: "the two tiers are swapped"
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
    num_hosts = group.size // ranks_per_host
    place, host = group.rank // ranks_per_host, group.rank % ranks_per_host
    fast = [host + p * ranks_per_host for p in range(num_hosts)]
    slow = [place * ranks_per_host + h for h in range(ranks_per_host)]
    total = x.flatten().clone()
    segments = total.tensor_split(len(fast))
    reduce_scatter(segments, fast, group)
    pieces = segments[place].tensor_split(len(slow))
    reduce_scatter(pieces, slow, group)
    all_gather(pieces, slow, group)
    all_gather(segments, fast, group)
    return total.view(x.shape)
