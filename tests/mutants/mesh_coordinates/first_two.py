"""Mutant: only the first two ranks are looked at.

outcome: "wrong"
diagnosis: "looks at two ranks of the group only"
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
    return len({each // gpus_per_node for each in group(sizes, rank, axes)[:2]}) > 1
