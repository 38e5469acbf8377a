"""Grade mesh_coordinates: coordinates, groups and nodes in drawn meshes, by counting ranks out."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Questions, patch, patches

AXES = ("dp", "pp", "cp", "ep", "tp")
Sizes = Mapping[str, int]


def cases(draw: Draw) -> Iterator[Case]:
    """Yield all three functions: axes of size 1 and of different sizes, groups at the edge of a
    node."""
    rng = draw.rng
    lengths = [(2, 3, 4), (3, 5, 2), (4, 2, 8), (6, 4), (2, 2, 2), (7,), (1, 1), (2, 11, 4)]
    groups = []
    for each in [*lengths, (1, 3, 4), (6, 1, 2), (3, 2, 1), (2, 3, 1, 4, 5)]:
        sizes = dict(zip(rng.sample(AXES, len(each)), each))
        last = math.prod(each) - 1
        for rank in (last, rng.randint(last // 2, last)):
            yield Case(shown(sizes, rank), sizes, rank, function="coordinates")
            pair = rng.sample(list(sizes), min(2, len(sizes)))
            groups += [(sizes, rank, axes) for axes in ([pair[0]], pair, list(sizes)[::-1])]
    for given in groups:
        yield Case(shown(*given), *given, function="group")
    nodes = [(*each, rng.choice((2, 3, 4, 6, 8, len(right(*each))))) for each in groups[::2]]
    nodes += [({"dp": 4, "tp": 3}, rank, ["tp"], 4) for rank in (0, 3, 5, 8)]
    big = {"pp": 2, "dp": 4, "tp": 4}
    nodes += [(big, rank, ["dp"], node) for rank in (0, 23) for node in (4, 12, 13, 16)]
    for asked in nodes:
        yield Case(shown(*asked), *asked, function="crosses_nodes")


def shown(sizes: Sizes, rank: int, axes: Sequence[str] = (), node: int = 0) -> str:
    """`pp 2 x tp 4, rank 3, over tp, nodes of 4 GPUs`"""
    mesh = " x ".join(f"{name} {size}" for name, size in sizes.items())
    over = f", over {' and '.join(axes)}" if axes else ""
    return f"{mesh}, rank {rank}{over}" + (f", nodes of {node} GPUs" if node else "")


def right(sizes: Sizes, rank: int, axes: Sequence[str] = (), node: int = 0) -> Any:
    """Return the right answer, found by listing the coordinates of all ranks."""
    ranges = [range(size) for size in sizes.values()]
    places = [dict(zip(sizes, place)) for place in itertools.product(*ranges)]
    mine = places[rank]
    if not axes:
        return mine
    others = [axis for axis in sizes if axis not in axes]
    group = [i for i, each in enumerate(places) if all(each[a] == mine[a] for a in others)]
    return len({each // node for each in group}) > 1 if node else group


DIVMOD, RETURN = "rank, found[axis] = divmod(rank, sizes[axis])", "return numbers"
CROSSES = "ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node"

MISTAKES = [
    Mistake(
        "takes the first axis for the fastest",
        "The last axis varies fastest: rank 1 differs from rank 0 along the last axis.",
        patch("in reversed(sizes):", "in sizes:"),
    ),
    Mistake(
        "takes another stride or modulus",
        "The coordinate is rank // stride % size. The stride is the product of the sizes of all "
        "faster axes, without the axis's own size. Without the "
        "modulus it counts the slower axes too.",
        patches(
            DIVMOD,
            "found[axis] = rank % sizes[axis]",
            "rank //= sizes[axis]\n        found[axis] = rank % sizes[axis]",
            "found[axis] = rank\n        rank //= sizes[axis]",
        ),
        hint=2,
    ),
    Mistake(
        "gives the ranks that agree along the axes",
        "The coordinates along `axes` vary within a group. The others are this rank's.",
        patch("if axis in axes", "if axis not in axes"),
    ),
    Mistake(
        "joins groups instead of axes",
        "Over two axes both coordinates vary: the group has all combinations, size times size "
        "ranks, and not only the ranks of the two groups.",
        patch(
            RETURN,
            "each = [group(sizes, rank, [axis]) for axis in axes if len(axes) > 1]\n"
            "    return sorted({*sum(each, [])}) or numbers",
        ),
        hint=2,
    ),
    Mistake(
        "the ranks are in another order",
        "The list is in increasing order, whatever the order of `axes`.",
        patch(
            RETURN,
            "return sorted(numbers, key=lambda r: [coordinates(sizes, r)[axis] for axis in axes])",
        ),
        hint=2,
    ),
    Mistake(
        "takes neighbours for a group, or starts it at this rank",
        "Ranks of a group are one stride apart. Only along the fastest axis is the stride 1. The "
        "coordinate goes from 0 to size - 1, so the group does not start at this rank.",
        patches(
            RETURN,
            "return [rank - rank % len(numbers) + i for i in range(len(numbers))]",
            "return [number - numbers[0] + rank for number in numbers]",
        ),
    ),
    Mistake(
        "compares the size or the span of the group with the node",
        "8 ranks that are 8 apart are on 8 nodes, though a node has 8 GPUs. And a group can start "
        "in the middle of a node and end on the next: ranks 3, 4, 5 on nodes of 4. Compare the "
        "nodes of the first and the last rank.",
        patches(CROSSES, "len(ranks) > gpus_per_node", "ranks[-1] - ranks[0] >= gpus_per_node"),
        hint=3,
    ),
]

GRADER = Questions(
    functions=("coordinates", "group", "crosses_nodes"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.mesh", "labkit.calc"),
    shown="you know the coordinates of a rank in any mesh, its group along one axis and along "
    "several, and which of these groups cross nodes",
)
