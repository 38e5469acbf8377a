"""Mutant: every rank sends its x to every other, and keeps what the root sent.

outcome: "over budget"
diagnosis: "everybody sends to everybody"
"""

import torch


def tree_broadcast(x, root, group):
    others = [rank for rank in range(group.size) if rank != group.rank]
    outgoing = [group.isend(x, rank) for rank in others]
    incoming = {rank: group.irecv(torch.empty_like(x), rank) for rank in others}
    received = {rank: pending.wait() for rank, pending in incoming.items()}
    for pending in outgoing:
        pending.wait()
    return received.get(root, x).clone()
