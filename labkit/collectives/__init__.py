"""Collectives written out with send and recv.

What a rank sends and receives at once it posts in one block, `with group.together()`, so that ranks
that send to each other do not wait for each other's receive on nccl either.

wire.py says who performs a strategy's collectives: the backend, the ring, or shared memory.
"""

from labkit.collectives.all_to_all import pairwise_all_to_all
from labkit.collectives.double_tree import double_tree_all_reduce
from labkit.collectives.halving_doubling import halving_doubling_all_reduce
from labkit.collectives.hierarchical import hierarchical_all_reduce, two_tiers
from labkit.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.collectives.ring_broadcast import ring_broadcast
from labkit.collectives.tree import tree_all_reduce, tree_broadcast, tree_reduce

__all__ = [
    "double_tree_all_reduce",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "pairwise_all_to_all",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_broadcast",
    "ring_reduce_scatter",
    "tree_all_reduce",
    "tree_broadcast",
    "tree_reduce",
    "two_tiers",
]
