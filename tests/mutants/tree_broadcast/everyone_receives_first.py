"""Mutant: every rank waits for its parent, the root too.

outcome: "hung"
diagnosis: "every rank is in recv: nobody sends"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    step = max(position.bit_length() - 1, 0)
    if n > 1:
        group.recv(out, (position - 2**step + root) % n)
    distance = 2 ** position.bit_length()
    while position + distance < n:
        group.send(out, (position + distance + root) % n)
        distance *= 2
    return out
