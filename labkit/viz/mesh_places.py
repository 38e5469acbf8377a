"""Where the ranks of a mesh are, and whom each talks to: for mesh.py and for a notebook's grid."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from labkit import arguments
from labkit.mesh import AXES, coordinates_at, ranks_along


class Place(NamedTuple):
    """The place of one rank."""

    rank: int
    coordinates: dict[str, int]
    """By axis, slowest first."""
    node: int


def checked_sizes(sizes: Mapping[str, int], most: int, coordinates: int) -> dict[str, int]:
    """Check the sizes of a mesh of at most `most` ranks, with so many coordinates in all.

    ValueError, TypeError for others.
    """
    num_ranks = 1
    for axis, size in sizes.items():
        if axis not in AXES:
            raise ValueError(f"{axis!r} is no axis; choose among {', '.join(AXES)}")
        num_ranks *= arguments.whole(axis, size, "give the number of ranks along this axis")
    if not sizes or num_ranks > most:
        raise ValueError(f"sizes={dict(sizes)!r:.60}: {num_ranks} ranks; give 1 to {most}")
    if num_ranks * len(sizes) > coordinates:
        raise ValueError(
            f"sizes={dict(sizes)!r:.60}: {num_ranks} ranks of {len(sizes)} axes are more than can "
            f"be read; leave out axes of size 1, or give at most {coordinates // len(sizes)} ranks"
        )
    return dict(sizes)


def places(sizes: Mapping[str, int], gpus_per_node: int) -> list[Place]:
    """Return the places by rank. Nodes are filled one after the other, as launchers do."""
    ranks = range(math.prod(sizes.values()))
    return [Place(rank, coordinates_at(rank, sizes), rank // gpus_per_node) for rank in ranks]


def groups_of(rank: int, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return by axis the ranks of `mesh.<axis>` as this rank sees it; it is in each of them."""
    return {axis: ranks_along(axis, rank, sizes) for axis in sizes}


def group_text(axis: str, ranks: tuple[int, ...], gpus_per_node: int) -> str:
    """Write a group: `tp: ranks 4, 5 (one node)`."""
    num_nodes = len({rank // gpus_per_node for rank in ranks})
    shown = [str(rank) for rank in ranks]
    if len(shown) > 8:
        shown = [*shown[:4], "...", shown[-1]]
    if len(ranks) == 1:
        return f"{axis}: alone"
    where = "one node" if num_nodes == 1 else f"{num_nodes} nodes"
    return f"{axis}: ranks {', '.join(shown)} ({where})"
