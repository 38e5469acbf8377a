"""Mutant: the groups of several axes are put together.

outcome: "wrong"
diagnosis: "joins the groups and not the axes"
"""


def coordinates(sizes, rank):
    found = {}
    for axis in reversed(sizes):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def along(sizes, rank, axis_of_it):
    mine = coordinates(sizes, rank)
    numbers = [0]
    for axis, size in sizes.items():
        places = range(size) if axis == axis_of_it else [mine[axis]]
        numbers = [number * size + place for number in numbers for place in places]
    return numbers


def group(sizes, rank, axes):
    return sorted({each for axis in axes for each in along(sizes, rank, axis)})


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
