"""Collectives written out with send and recv.

Except in plain.py, a rank posts a send and a receive that belong together in one block, `with
group.together()`: on nccl two ranks that both send first would wait for each other for ever.

Read in this order:

    plain.py              start here: ring all-reduce in the fewest lines
    ring.py               the same in blocks and in place; reduce-scatter and all-gather alone
    stream.py             receive, add and pass on a long tensor in blocks; the `out` argument
    bruck.py              an all-gather in log2 n steps
    ring_broadcast.py     a broadcast along a chain
    tree.py               reduce and broadcast along a binary tree; double_tree.py: two trees
    halving_doubling.py   a reduce-scatter in log2 n steps, an all-gather in as many
    hierarchical.py       most bytes over the fast links within hosts
    all_to_all.py         a message from every rank to every other
    autograd.py           collectives that a gradient flows through, in adjoint pairs
    backend.py            the implementation a strategy uses: library, ring or shared memory
"""

from labkit.collectives.all_to_all import pairwise_all_to_all
from labkit.collectives.bruck import bruck_all_gather
from labkit.collectives.double_tree import double_tree_all_reduce
from labkit.collectives.halving_doubling import halving_doubling_all_reduce
from labkit.collectives.hierarchical import hierarchical_all_reduce, two_tiers
from labkit.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.collectives.ring_broadcast import ring_broadcast
from labkit.collectives.tree import tree_all_reduce, tree_broadcast, tree_reduce

__all__ = [
    "bruck_all_gather",
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
