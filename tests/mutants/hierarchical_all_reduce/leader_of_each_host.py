"""Mutant: sends everything to the first rank of each host, and lets those talk to each other.

outcome: "over budget"
diagnosis: "one leader per host carries it all"
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
    leader = host * ranks_per_host
    total = x.flatten().clone()
    if place > 0:
        group.send(total, leader)
        return group.recv(total, leader).view(x.shape)
    for member in range(leader + 1, leader + ranks_per_host):
        total += group.recv(torch.empty_like(total), member)
    segments = total.tensor_split(num_hosts)
    leaders = range(0, group.size, ranks_per_host)
    reduce_scatter(segments, leaders, group)
    all_gather(segments, leaders, group)
    for member in range(leader + 1, leader + ranks_per_host):
        group.send(total, member)
    return total.view(x.shape)
