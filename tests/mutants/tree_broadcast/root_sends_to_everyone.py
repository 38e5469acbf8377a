"""Mutant: the root sends to every other rank, one by one.

outcome: "over budget"
diagnosis: "the root sends to everyone itself"
"""


def tree_broadcast(x, root, group):
    out = x.clone()
    if group.rank == root:
        for rank in range(group.size):
            if rank != root:
                group.send(out, rank)
    else:
        group.recv(out, root)
    return out
