"""Meshes, ranks, axes and nodes for mesh_coordinates; what is right comes of counting ranks out.

All places of a mesh are written down in the order of their numbers: nothing is divided there.
"""

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.grade.answers import Question

AXES = ("dp", "pp", "cp", "ep", "tp")


@dataclass(frozen=True)
class Asked:
    """The arguments of one call; without axes the coordinates are asked for."""

    sizes: tuple[tuple[str, int], ...]
    rank: int
    axes: tuple[str, ...] = ()
    gpus_per_node: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the axes of the mesh, slowest first."""
        return tuple(name for name, _ in self.sizes)

    @property
    def lengths(self) -> tuple[int, ...]:
        """In the same order."""
        return tuple(size for _, size in self.sizes)

    @property
    def num_ranks(self) -> int:
        """Of the mesh."""
        return math.prod(self.lengths)

    @property
    def chosen(self) -> tuple[int, ...]:
        """Numbers of the axes that are asked about, as they are given."""
        return tuple(self.names.index(axis) for axis in self.axes)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Plain data."""
        axes = (list(self.axes),) if self.axes else ()
        node = (self.gpus_per_node,) if self.gpus_per_node else ()
        return (dict(self.sizes), self.rank, *axes, *node)

    def __str__(self) -> str:
        mesh = " x ".join(f"{name} {size}" for name, size in self.sizes)
        over = f", over {' and '.join(self.axes)}" if self.axes else ""
        node = f", nodes of {self.gpus_per_node}" if self.gpus_per_node else ""
        return f"{mesh}: rank {self.rank}{over}{node}"


@functools.cache
def places(lengths: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The coordinates of every rank, by number: the last axis varies fastest."""
    return tuple(itertools.product(*map(range, lengths)))


def right_coordinates(asked: Asked) -> dict[str, int]:
    """Looked up."""
    return dict(zip(asked.names, places(asked.lengths)[asked.rank]))


def right_group(asked: Asked) -> list[int]:
    """All ranks gone through, and those kept that agree along every other axis."""
    return list(_group(asked.lengths, asked.rank, asked.chosen))


@functools.cache
def _group(lengths: tuple[int, ...], rank: int, free: tuple[int, ...]) -> tuple[int, ...]:
    everyone = places(lengths)
    mine = everyone[rank]
    return tuple(
        number
        for number, its in enumerate(everyone)
        if all(axis in free or its[axis] == mine[axis] for axis in range(len(mine)))
    )


def right_crossing(asked: Asked) -> bool:
    """By the nodes of all of its ranks."""
    return len({rank // asked.gpus_per_node for rank in right_group(asked)}) > 1


def draw(rng: random.Random) -> list[Question[Asked]]:
    """Of all three functions, the plain meshes first."""
    meshes = list(_meshes(rng))
    coordinates = [Asked(mesh, rank) for mesh in meshes for rank in _ranks(mesh, rng)]
    groups = [
        Asked(mesh, rng.choice(_ranks(mesh, rng)), axes)
        for mesh in meshes
        for axes in _choices(mesh, rng)
    ]
    crossings = [*_on_nodes(groups, rng), *_at_the_edge()]
    return [
        *(Question("coordinates", each.arguments, str(each), each) for each in coordinates),
        *(Question("group", each.arguments, str(each), each) for each in groups),
        *(Question("crosses_nodes", each.arguments, str(each), each) for each in crossings),
    ]


Mesh = tuple[tuple[str, int], ...]


def _meshes(rng: random.Random) -> Iterator[Mesh]:
    """Equal sizes hide a wrong order, so most differ; 1 at either end and in the middle."""
    yield _mesh(rng, (2, 2, 2))
    yield _mesh(rng, (2, 3, 4))
    for sizes in ((3, 5, 2), (4, 2, 8), (6, 4)):
        yield _mesh(rng, sizes)
    yield _mesh(rng, rng.sample((2, 3, 5, 7), 3))
    for at in range(3):  # an axis of one rank: first, in the middle, last
        others = rng.sample((2, 3, 4, 6), 2)
        yield _mesh(rng, [*others[:at], 1, *others[at:]])
    yield _mesh(rng, rng.sample((2, 3, 4, 1, 5), 5))
    yield _mesh(rng, [rng.choice((2, 3)), rng.randrange(9, 16), rng.choice((4, 8))])
    yield _mesh(rng, (rng.randrange(4, 9),))
    yield _mesh(rng, (1, 1))


def _mesh(rng: random.Random, sizes: Any) -> Mesh:
    return tuple(zip(rng.sample(AXES, len(sizes)), sizes))


def _ranks(mesh: Mesh, rng: random.Random) -> list[int]:
    """The last one, and some between the ends."""
    last = math.prod(size for _, size in mesh) - 1
    return [last, *(rng.randrange((last + 1) // 2, last + 1) for _ in range(2))]


def _choices(mesh: Mesh, rng: random.Random) -> Iterator[tuple[str, ...]]:
    """Each axis, pairs in either order, and all together."""
    names = [name for name, _ in mesh]
    yield from ((name,) for name in names)
    pairs = list(itertools.combinations(names, 2))
    for pair in rng.sample(pairs, min(2, len(pairs))):
        yield pair if rng.random() < 0.5 else pair[::-1]
    if len(names) > 2:
        yield (names[-1], names[0])
        yield tuple(rng.sample(names, len(names)))


def _on_nodes(groups: list[Asked], rng: random.Random) -> Iterator[Asked]:
    """Groups on nodes of the usual sizes, of the group's own, and of what does not divide."""
    for asked in rng.sample(groups, 24):
        for size in (len(right_group(asked)), rng.choice((2, 3, 4, 5, 6, 7, 8))):
            yield Asked(asked.sizes, asked.rank, asked.axes, size)


def _at_the_edge() -> Iterator[Asked]:
    """A group that fits on a node, and begins where it leaves one; a stride as long as a node."""
    for rank in (0, 3, 5, 8):  # ranks 3 4 5 are on nodes 0 and 1 of 4
        yield Asked((("dp", 4), ("tp", 3)), rank, ("tp",), 4)
    for rank in (0, 7, 9, 23):  # 0 4 8 12: a span of 12
        for gpus_per_node in (4, 12, 13, 16):
            yield Asked((("pp", 2), ("dp", 4), ("tp", 4)), rank, ("dp",), gpus_per_node)
    yield Asked((("pp", 2), ("dp", 3), ("tp", 4)), 17, ("tp", "dp"), 12)
    yield Asked((("pp", 2), ("dp", 2), ("tp", 4)), 13, ("pp", "tp"), 16)
