"""Mutant: coordinates are peeled off from the end, and named from the beginning.

outcome: "wrong"
diagnosis: "gives the coordinates to the axes in the other order"
"""


def coordinates(sizes, rank):
    found = []
    for size in reversed(sizes.values()):
        rank, place = divmod(rank, size)
        found.append(place)
    return dict(zip(sizes, found))


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
