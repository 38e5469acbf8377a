"""Collectives written out with send and recv.

What a rank sends and receives at once it posts in one block, `with group.together()`, so that ranks
that send to each other do not wait for each other's receive on nccl either.

Read in this order:

    plain.py              start here: ring all-reduce in the fewest lines
    ring.py               the same in blocks and in place; reduce-scatter and all-gather alone
    stream.py             a long tensor goes through a rank in blocks; where results are put
    ring_broadcast.py     a broadcast along a chain
    tree.py               reduce and broadcast along a binary tree; double_tree.py: two trees
    halving_doubling.py   log2 n steps to a part of the sum, and log2 n back
    hierarchical.py       most of the way over fast links
    all_to_all.py         a message from every rank to every other
    autograd.py           collectives that a gradient flows through, in adjoint pairs
    backend.py            who performs a strategy's collectives: backend, ring, shared memory
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
