"""Mutant: position + root without the remainder: a rank that there is not.

outcome: "crashed"
diagnosis: "works only where rank 0 is the root"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, position + distance + root)
        elif position < 2 * distance:
            group.recv(out, position - distance + root)
        distance *= 2
    return out
