"""Mutant: along joined axes the order of names decides.

outcome: "wrong"
diagnosis: "the ranks are in another order"
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
    mine = coordinates(sizes, rank)
    first = rank - sum(mine[axis] * stride(sizes, axis) for axis in axes)
    numbers = [first]
    for axis in axes:
        steps = [place * stride(sizes, axis) for place in range(sizes[axis])]
        numbers = [number + step for number in numbers for step in steps]
    return numbers


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
