"""Mutant: receives into x.

outcome: "wrong"
diagnosis: "changes its input"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(x, (position + distance + root) % n)
        elif position < 2 * distance:
            group.recv(x, (position - distance + root) % n)
        distance *= 2
    return x.clone()
