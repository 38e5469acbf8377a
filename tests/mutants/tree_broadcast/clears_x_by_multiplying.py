"""Mutant: makes room with x * 0, which is not 0 where x is NaN.

outcome: "wrong"
diagnosis: "lets its own x count"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone() if position == 0 else x * 0
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, (position + distance + root) % n)
        elif position < 2 * distance:
            out += group.recv(x.new_empty(x.shape), (position - distance + root) % n)
        distance *= 2
    return out
