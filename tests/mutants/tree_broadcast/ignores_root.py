"""Mutant: sends down the tree from rank 0, whichever rank is the root.

outcome: "wrong"
diagnosis: "ignores root"
"""


def tree_broadcast(x, root, group):
    n, rank = group.size, group.rank
    out = x.clone()
    distance = 1
    while distance < n:
        if rank < distance:
            if rank + distance < n:
                group.send(out, rank + distance)
        elif rank < 2 * distance:
            group.recv(out, rank - distance)
        distance *= 2
    return out
