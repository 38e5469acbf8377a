"""Mutant: a group goes on to the end of the mesh.

outcome: "wrong"
diagnosis: "forgets that slower axes stay as they are"
"""

import math


def coordinates(sizes, rank):
    found = {}
    for axis in reversed(sizes):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def group(sizes, rank, axes):
    mine, names = coordinates(sizes, rank), list(sizes)
    slowest = min(map(names.index, axes))
    kept = [axis for axis in names[slowest:] if axis not in axes]
    found = []
    for other in range(math.prod(sizes.values())):
        its = coordinates(sizes, other)
        if all(its[axis] == mine[axis] for axis in kept):
            found.append(other)
    return found


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
