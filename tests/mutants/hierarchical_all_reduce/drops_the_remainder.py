"""Mutant: cuts into parts of `numel // n` elements, and leaves the rest alone.

outcome: "wrong"
diagnosis: "ignores the remainder of an uneven size"
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
    host, place = divmod(group.rank, ranks_per_host)
    fast = [host * ranks_per_host + p for p in range(ranks_per_host)]
    slow = [h * ranks_per_host + place for h in range(num_hosts)]
    total = x.flatten().clone()
    length = total.numel() // ranks_per_host
    segments = total[: length * ranks_per_host].view(ranks_per_host, length)
    reduce_scatter(segments, fast, group)
    pieces = segments[place].tensor_split(num_hosts)
    reduce_scatter(pieces, slow, group)
    all_gather(pieces, slow, group)
    all_gather(segments, fast, group)
    return total.view(x.shape)
