"""Mutant: a rank does not belong to its group.

outcome: "wrong"
diagnosis: "leaves this rank out"
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
    return [number for number in numbers if number != rank]


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = [rank, *group(sizes, rank, axes)]
    ranks.sort()
    return ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
