"""Coordinates of a rank in a mesh, its group along given axes, and the nodes of that group.

An interviewer asks: "64 GPUs, pp 2 x dp 8 x tp 4, tp varies fastest. Which coordinates has rank 45?
Which ranks are in its tensor-parallel group, which in its data-parallel group, and which in its
group over dp and pp together? Which of these groups stay on one node of 8 GPUs?"

Write three functions.

    sizes          a dict: the number of ranks along each axis, by name, the slowest axis first:
                   {"pp": 2, "dp": 8, "tp": 4}. An axis may have size 1. The mesh has as many ranks
                   as the product of all sizes. They are numbered from 0, and the coordinate along
                   the last axis varies fastest
    rank           the number of a rank
    axes           a list of names of axes, at least one, each once, in any order
    gpus_per_node  node 0 has ranks 0 to gpus_per_node - 1, node 1 the next gpus_per_node ranks, and
                   so on. The last node may be partly full

    coordinates(sizes, rank)
        returns  a dict: the rank's coordinate along each axis, by name, counted from 0
    group(sizes, rank, axes)
        returns  a list of ranks in increasing order: `rank` itself, and all ranks that differ from
                 it only in coordinates along `axes`
    crosses_nodes(sizes, rank, axes, gpus_per_node)
        returns  True if that group has ranks on more than one node, otherwise False

Contract
    size 1   An axis of size 1 is an axis like the others: its coordinate is 0, and a group along it
             has one rank
    never    labkit.mesh, labkit.calc. A few lines with whole numbers are enough

Paper: Narayanan et al., arXiv:2104.04473, section 2. Megatron-LM numbers ranks in this way.
"""

from collections.abc import Mapping, Sequence


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the rank's coordinate along each axis."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def group(sizes: Mapping[str, int], rank: int, axes: Sequence[str]) -> list[int]:
    """Return the ranks that differ from this one along `axes` only, in increasing order."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def crosses_nodes(
    sizes: Mapping[str, int], rank: int, axes: Sequence[str], gpus_per_node: int
) -> bool:
    """Return whether the group along `axes` has ranks on more than one node."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
