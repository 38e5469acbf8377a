"""Mutant: the sizes are used up.

outcome: "wrong"
diagnosis: "changes what it is given"
"""


def coordinates(sizes, rank):
    found = {}
    while sizes:
        axis, size = sizes.popitem()
        rank, found[axis] = divmod(rank, size)
    return found


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
