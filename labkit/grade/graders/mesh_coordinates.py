"""Grade mesh_coordinates: coordinates, groups and nodes in drawn meshes, by counting ranks out."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

AXES = ("dp", "pp", "cp", "ep", "tp")
Sizes = Mapping[str, int]


def cases(draw: Draw) -> Iterator[Case]:
    """All three functions: axes of size 1 and of different sizes, groups at the edge of a node."""
    rng = draw.rng
    lengths = [(2, 3, 4), (3, 5, 2), (4, 2, 8), (6, 4), (2, 2, 2), (7,), (1, 1), (2, 11, 4)]
    lengths += [
        (1, 3, 4),
        (6, 1, 2),
        (3, 2, 1),
        (2, 3, 1, 4, 5),
        tuple(rng.sample((2, 3, 5, 7), 3)),
    ]
    meshes = [dict(zip(rng.sample(AXES, len(each)), each)) for each in lengths]
    asked = []
    for sizes in meshes:
        last = math.prod(sizes.values()) - 1
        for rank in (last, rng.randint(last // 2, last)):
            yield Case(shown(sizes, rank), sizes, rank, function="coordinates")
            pair = rng.sample(list(sizes), min(2, len(sizes)))
            asked += [(sizes, rank, axes) for axes in ([pair[0]], pair, list(sizes)[::-1])]
    for sizes, rank, axes in asked:
        yield Case(shown(sizes, rank, axes), sizes, rank, axes, function="group")
    crossings = [(*each, rng.choice((2, 3, 4, 6, 8, len(right(*each))))) for each in asked[::2]]
    crossings += [({"dp": 4, "tp": 3}, rank, ["tp"], 4) for rank in (0, 3, 5, 8)]
    big = {"pp": 2, "dp": 4, "tp": 4}
    crossings += [(big, rank, ["dp"], node) for rank in (0, 23) for node in (4, 12, 13, 16)]
    for *given, node in crossings:
        label = f"{shown(*given)}, nodes of {node} GPUs"
        yield Case(label, *given, node, function="crosses_nodes")


def shown(sizes: Sizes, rank: int, axes: Sequence[str] = ()) -> str:
    """`pp 2 x tp 4, rank 3, over tp`"""
    mesh = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return f"{mesh}, rank {rank}" + (f", over {' and '.join(axes)}" if axes else "")


def right(sizes: Sizes, rank: int, axes: Sequence[str] = (), node: int = 0) -> Any:
    """Of the function with these arguments: all ranks are written down, and looked through."""
    ranges = [range(size) for size in sizes.values()]
    places = [dict(zip(sizes, place)) for place in itertools.product(*ranges)]
    mine = places[rank]
    if not axes:
        return mine
    others = [axis for axis in sizes if axis not in axes]
    group = [i for i, each in enumerate(places) if all(each[a] == mine[a] for a in others)]
    return len({each // node for each in group}) > 1 if node else group


def strides(sizes: Sizes) -> dict[str, int]:
    """How far apart neighbours along each axis are."""
    lengths = list(sizes.values())
    return {axis: math.prod(lengths[i + 1 :]) for i, axis in enumerate(sizes)}


def each_axis(rule: Callable[[int, int, int], int]) -> Callable[..., Any]:
    """A formula for coordinates: rule(rank, stride, size) for each axis."""
    return lambda sizes, rank: {
        axis: rule(rank, strides(sizes)[axis], size) for axis, size in sizes.items()
    }


def next_size_as_stride(sizes: Sizes, rank: int) -> dict[str, int]:
    """Wrong coordinates: rank // (size of the next axis) % size."""
    steps = [*list(sizes.values())[1:], 1]
    return {axis: rank // step % sizes[axis] for axis, step in zip(sizes, steps)}


def neighbours(sizes: Sizes, rank: int, axes: Sequence[str]) -> list[int]:
    """A wrong group: as many ranks in a row."""
    size = math.prod(sizes[axis] for axis in axes)
    return list(range(rank // size * size, rank // size * size + size))


DIVMOD = "rank, found[axis] = divmod(rank, sizes[axis])"
CROSSES = "ranks[0] // gpus_per_node != ranks[-1] // gpus_per_node"

MISTAKES = [
    Mistake(
        "takes the first axis for the fastest",
        "The last axis varies fastest: rank 1 differs from rank 0 along the last axis.",
        function="coordinates",
        formula=lambda sizes, rank: right(dict(reversed(sizes.items())), rank),
        made_by=patch("in reversed(sizes):", "in sizes:"),
    ),
    Mistake(
        "forgets the stride",
        "rank % size is the coordinate along the fastest axis only. First divide by the stride, "
        "the product of the sizes of all faster axes.",
        function="coordinates",
        formula=each_axis(lambda rank, stride, size: rank % size),
        made_by=patch(DIVMOD, "found[axis] = rank % sizes[axis]"),
    ),
    Mistake(
        "forgets the modulus",
        "rank // stride counts the slower axes, too. The coordinate is rank // stride % size.",
        hint=2,
        function="coordinates",
        formula=each_axis(lambda rank, stride, size: rank // stride),
        made_by=patch(DIVMOD, "found[axis] = rank\n        rank //= sizes[axis]"),
    ),
    Mistake(
        "takes the size of the next axis for the stride",
        "The stride is the product of the sizes of all faster axes, not only of the next one.",
        hint=2,
        function="coordinates",
        formula=next_size_as_stride,
        made_by=patch(
            f"    {DIVMOD}",
            "    faster = [*sizes, None][list(sizes).index(axis) + 1]\n"
            "        found[axis] = rank // sizes.get(faster, 1) % sizes[axis]",
        ),
    ),
    Mistake(
        "counts an axis's own size in its stride",
        "The stride is the product of the sizes of the faster axes. The axis's own size is "
        "the modulus.",
        hint=3,
        function="coordinates",
        formula=each_axis(lambda rank, stride, size: rank // (stride * size) % size),
        made_by=patch(DIVMOD, "rank //= sizes[axis]\n        found[axis] = rank % sizes[axis]"),
    ),
    Mistake(
        "starts the group at this rank",
        "Along an axis of the group the coordinate goes from 0 to size - 1. It does "
        "not start at this rank's coordinate.",
        hint=3,
        function="group",
        formula=lambda *given: [r - right(*given)[0] + given[1] for r in right(*given)],
        made_by=patch(
            "return numbers", "return [number - numbers[0] + rank for number in numbers]"
        ),
    ),
    Mistake(
        "gives the ranks that agree along the axes",
        "The coordinates along `axes` vary within a group. The others are this rank's.",
        function="group",
        formula=lambda sizes, rank, axes: (
            right(sizes, rank, [a for a in sizes if a not in axes])
            if len(axes) < len(sizes)
            else [rank]
        ),
        made_by=patch("if axis in axes", "if axis not in axes"),
    ),
    Mistake(
        "leaves the rank itself out",
        "A rank is a member of its own groups. Over axes of size 1 the group is the rank alone.",
        hint=2,
        function="group",
        formula=lambda *given: [each for each in right(*given) if each != given[1]],
        made_by=patch("return numbers", "return [each for each in numbers if each != rank]"),
    ),
    Mistake(
        "joins groups instead of axes",
        "Over two axes both coordinates vary: the group has all combinations, size times size "
        "ranks, and not only the ranks of the two groups.",
        hint=2,
        function="group",
        formula=lambda sizes, rank, axes: sorted(
            {each for axis in axes for each in right(sizes, rank, [axis])}
        ),
        made_by=patch(
            "    mine = coordinates(sizes, rank)\n",
            "    if len(axes) > 1:\n"
            "        return sorted({r for axis in axes for r in group(sizes, rank, [axis])})\n"
            "    mine = coordinates(sizes, rank)\n",
        ),
    ),
    Mistake(
        "the ranks are in another order",
        "The list is in increasing order, whatever the order of `axes`.",
        hint=2,
        function="group",
        formula=lambda sizes, rank, axes: sorted(
            right(sizes, rank, axes), key=lambda r: [right(sizes, r)[axis] for axis in axes]
        ),
        made_by=patch(
            "return numbers",
            "return sorted(numbers, key=lambda r: [coordinates(sizes, r)[axis] for axis in axes])",
        ),
    ),
    Mistake(
        "takes neighbours for a group",
        "Ranks of a group are one stride apart. Only along the fastest axis is the stride 1.",
        function="group",
        formula=[
            neighbours,
            lambda *given: [right(*given)[0] + i for i in range(len(right(*given)))],
        ],
        made_by=patch(
            "return numbers",
            "first = rank // len(numbers) * len(numbers)\n"
            "    return list(range(first, first + len(numbers)))",
        ),
    ),
    Mistake(
        "compares the size of the group with the node",
        "8 ranks that are 8 apart are on 8 nodes, though a node has 8 GPUs. Compare the nodes of "
        "the first and the last rank.",
        hint=3,
        function="crosses_nodes",
        formula=lambda *given: len(right(*given[:3])) > given[3],
        made_by=patch(CROSSES, "len(ranks) > gpus_per_node"),
    ),
    Mistake(
        "compares the span of the group with the node",
        "A group can start in the middle of a node and end on the next: ranks 3, 4, 5 on nodes of "
        "4. Compare the nodes of the first and the last rank.",
        hint=3,
        function="crosses_nodes",
        formula=[
            lambda *given: right(*given[:3])[-1] - right(*given[:3])[0] >= given[3],
            lambda *given: right(*given[:3])[-1] - right(*given[:3])[0] > given[3],
        ],
        made_by=patch(CROSSES, "ranks[-1] - ranks[0] >= gpus_per_node"),
    ),
]

GRADER = Questions(
    name="mesh_coordinates",
    functions=("coordinates", "group", "crosses_nodes"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.mesh", "labkit.calc"),
    shown="you know the coordinates of a rank in any mesh, its group along one axis and along "
    "several, and which of these groups cross nodes",
)
