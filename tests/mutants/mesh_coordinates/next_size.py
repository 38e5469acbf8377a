"""Mutant: the stride is the size of the next axis.

outcome: "wrong"
diagnosis: "takes the size of the next axis for the stride"
"""


def coordinates(sizes, rank):
    strides = [*list(sizes.values())[1:], 1]
    return {axis: rank // step % sizes[axis] for axis, step in zip(sizes, strides)}


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
