"""Mutant: the group begins at this rank.

outcome: "wrong"
diagnosis: "begins at this rank"
"""

import math


def stride(sizes, axis):
    names = list(sizes)
    return math.prod(sizes[name] for name in names[names.index(axis) + 1 :])


def coordinates(sizes, rank):
    found = {}
    for axis in reversed(sizes):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def group(sizes, rank, axes):
    numbers = [rank]
    for axis in sizes:
        if axis in axes:
            steps = [place * stride(sizes, axis) for place in range(sizes[axis])]
            numbers = [number + step for number in numbers for step in steps]
    return numbers


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
