"""Mutant: axes of size 1 have no coordinate.

outcome: "wrong"
diagnosis: "leaves out axes of one rank"
"""


def coordinates(sizes, rank):
    found = {}
    for axis in reversed(sizes):
        if sizes[axis] == 1:
            continue
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def group(sizes, rank, axes):
    mine = coordinates(sizes, rank)
    numbers = [0]
    for axis, size in sizes.items():
        places = range(size) if axis in axes else [mine.get(axis, 0)]
        numbers = [number * size + place for number in numbers for place in places]
    return numbers


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
