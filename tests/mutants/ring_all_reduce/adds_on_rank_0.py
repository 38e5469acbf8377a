"""Mutant: sends everything to rank 0, which adds and sends it back.

outcome: "wrong"
diagnosis: "not a ring"
"""

import torch


def ring_all_reduce(x, group):
    total = x.clone()
    if group.rank != 0:
        group.send(x, 0)
        return group.recv(total, 0)
    for rank in range(1, group.size):
        total += group.recv(torch.empty_like(x), rank)
    for rank in range(1, group.size):
        group.send(total, rank)
    return total
