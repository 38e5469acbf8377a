"""Mutant: a group of at most gpus_per_node ranks is taken to fit on a node.

outcome: "wrong"
diagnosis: "goes by the size of the group and not by its span"
"""


def coordinates(sizes, rank):
    found = {}
    for axis in reversed(sizes):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def group(sizes, rank, axes):
    mine = coordinates(sizes, rank)
    numbers = [0]
    for axis, size in sizes.items():
        places = range(size) if axis in axes else [mine[axis]]
        numbers = [number * size + place for number in numbers for place in places]
    return numbers


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    return len(group(sizes, rank, axes)) > gpus_per_node
