"""Where a rank is in a mesh, whom it talks to along each axis, and whether that leaves the node.

An interviewer asks: "64 GPUs, pp 2 x dp 8 x tp 4, tp varies fastest. Which coordinates has rank 45?
Which ranks are in its tensor-parallel group, in its data-parallel group, and in the one over dp and
pp together? Which of these groups stay on one node of 8 GPUs?"

Write three functions.

    sizes          a dict: the number of ranks along each axis, by its name, the slowest axis first:
                   {"pp": 2, "dp": 8, "tp": 4}. An axis may have size 1. The mesh has as many ranks
                   as the product of all sizes, numbered from 0: the last axis varies fastest
    rank           of the mesh
    axes           a list of names of axes, at least one, each once, in any order
    gpus_per_node  node 0 has the ranks 0 to gpus_per_node - 1, node 1 as many after them, and so
                   on; the last node may be partly full

    coordinates(sizes, rank)
        returns  a dict: this rank's coordinate along each axis, by name, counted from 0
    group(sizes, rank, axes)
        returns  a list of ranks: those that differ from `rank` in these axes only, it among them,
                 in the order of their numbers
    crosses_nodes(sizes, rank, axes, gpus_per_node)
        returns  True where that group has ranks on more than one node, else False

Contract
    axes     of size 1 count as all others: a coordinate of 0, and a group of one
    never    labkit.mesh, labkit.calc. It is a few lines of whole numbers

Paper: Narayanan et al., arXiv:2104.04473, section 2; Megatron-LM's rank generator numbers so.
"""

from collections.abc import Mapping, Sequence


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Of a rank, along each axis."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def group(sizes: Mapping[str, int], rank: int, axes: Sequence[str]) -> list[int]:
    """The ranks that differ from this one in `axes` only, in the order of their numbers."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def crosses_nodes(
    sizes: Mapping[str, int], rank: int, axes: Sequence[str], gpus_per_node: int
) -> bool:
    """Whether the group over `axes` has ranks on more than one node."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
