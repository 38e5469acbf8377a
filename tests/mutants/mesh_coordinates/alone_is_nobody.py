"""Mutant: an axis of one rank has an empty group.

outcome: "wrong"
diagnosis: "has no group along an axis of one rank"
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
    return numbers if len(numbers) > 1 else []


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    ranks = group(sizes, rank, axes)
    return len(ranks) > 1 and ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node
