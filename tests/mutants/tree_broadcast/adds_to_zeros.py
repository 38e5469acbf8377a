"""Mutant: adds what it receives to zeros, as a reduction would, and loses the sign of -0.0.

outcome: "wrong"
diagnosis: "calculates where it should copy"
"""

import torch


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone() if position == 0 else torch.zeros_like(x)
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, (position + distance + root) % n)
        elif position < 2 * distance:
            out = out + group.recv(torch.empty_like(x), (position - distance + root) % n)
        distance *= 2
    return out
