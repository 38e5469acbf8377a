"""Mutant: the partner is position ^ distance, which may be a rank that there is not.

outcome: "crashed"
diagnosis: "works only where n is a power of two"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    distance = 1
    while distance < n:
        partner = position ^ distance
        if position < distance:
            group.send(out, partner if partner >= n else (partner + root) % n)
        elif position < 2 * distance:
            group.recv(out, (partner + root) % n)
        distance *= 2
    return out
