"""Mutant: int(log2(n)) steps: too few unless n is a power of two.

outcome: "wrong"
diagnosis: "works only where n is a power of two"
"""

import math


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    for step in range(int(math.log2(n))):
        distance = 2**step
        if position < distance and position + distance < n:
            group.send(out, (position + distance + root) % n)
        elif distance <= position < 2 * distance:
            group.recv(out, (position - distance + root) % n)
    return out
