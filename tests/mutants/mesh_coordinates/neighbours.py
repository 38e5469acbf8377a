"""Mutant: a group is taken for neighbouring ranks.

outcome: "wrong"
diagnosis: "takes neighbours for a group"
"""

import math


def coordinates(sizes, rank):
    found = {}
    for axis in reversed(sizes):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def group(sizes, rank, axes):
    size = math.prod(sizes[axis] for axis in axes)
    first = rank // size * size
    return list(range(first, first + size))


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
