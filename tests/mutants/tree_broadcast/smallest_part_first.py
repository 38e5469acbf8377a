"""Mutant: a binomial tree whose ranks serve the nearest child first, which is a leaf.

outcome: "over budget"
diagnosis: "sends to the smallest part of the tree first"
"""


def tree_broadcast(x, root, group):
    n = group.size
    position = (group.rank - root) % n
    out = x.clone()
    distance = 1
    while distance < n and not position & distance:
        distance *= 2
    children = [2**k for k in range(n) if 2**k < distance and position + 2**k < n]
    if position:
        group.recv(out, (position - distance + root) % n)
    for child in children:
        group.send(out, (position + child + root) % n)
    return out
