"""Mutant: each rank passes x on to the next one.

outcome: "over budget"
diagnosis: "passes x down a chain"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    if position > 0:
        group.recv(out, (group.rank - 1) % n)
    if position < n - 1:
        group.send(out, (group.rank + 1) % n)
    return out
