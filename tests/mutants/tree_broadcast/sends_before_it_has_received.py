"""Mutant: each rank sends to its children, and then receives.

outcome: "wrong"
diagnosis: "sends before it has received"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    distance = 2 ** position.bit_length()
    while position + distance < n:
        group.send(out, (position + distance + root) % n)
        distance *= 2
    if position:
        group.recv(out, (position - 2 ** (position.bit_length() - 1) + root) % n)
    return out
