"""Mutant: the rest is taken by the size of the axis before.

outcome: "wrong"
diagnosis: "takes the modulus of another axis"
"""

import math


def stride(sizes, axis):
    names = list(sizes)
    return math.prod(sizes[name] for name in names[names.index(axis) + 1 :])


def coordinates(sizes, rank):
    lengths = list(sizes.values())
    moduli = [lengths[-1], *lengths]
    return {axis: rank // stride(sizes, axis) % size for axis, size in zip(sizes, moduli)}


def group(sizes, rank, axes):
    mine = coordinates(sizes, rank)
    numbers = [0]
    for axis, size in sizes.items():
        places = range(size) if axis in axes else [mine[axis]]
        numbers = [number * size + place for number in numbers for place in places]
    return numbers


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
