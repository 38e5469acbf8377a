"""Mutant: each rank has two children, as in a heap, and then stops sending.

outcome: "over budget"
diagnosis: "ranks that have x stand idle"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    if position:
        group.recv(out, ((position - 1) // 2 + root) % n)
    for child in (2 * position + 1, 2 * position + 2):
        if child < n:
            group.send(out, (child + root) % n)
    return out
