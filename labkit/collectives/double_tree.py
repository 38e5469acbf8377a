r"""Double-tree all-reduce: two binary trees at once, in which every rank is a leaf at least once.

One tree uses its links unevenly: leaves, half of the ranks, send once, and inner ranks send to two
children and a parent. So each half of x gets a tree of its own, and an inner rank of one tree is a
leaf of the other. In tree 0 the odd ranks are inner. Tree 1 is tree 0 shifted left by one rank,
wrapping around, so in it the even ranks are inner. Eight ranks, in order from left to right:

    tree 0, first half of x            tree 1, second half
                    7                                  6
                  /                                  /
            3                                  2
         /     \                            /     \
       1         5                        0         4
     /   \     /   \                    /   \     /   \
    0     2   4     6                  7     1   3     5

    1. up       a reduce of both halves to their roots
    2. down     a broadcast of both sums along the same edges

Steps, for k blocks of each half: 2 per level and 2 per further block, up and down, so at most
4(floor(log2 n) + k - 1). In two steps an inner rank sends two blocks and receives two, over both
trees: its link is busy in both directions.
Wire: half of x along each edge, at most 2 x per rank. That is hardly more than a ring's 2(n-1)/n,
and latency grows only with log2 n. NCCL has used it between hosts since version 2.4.
Paper: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009. (For an even n the paper mirrors tree 0 instead of shifting
it. Both make every other rank inner.)
"""

from itertools import zip_longest

import torch

from labkit.collectives.stream import BLOCK_BYTES, blocks, result_like, stream
from labkit.collectives.tree import Place, broadcasting, reducing
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.comm.member import messages_of


def double_tree_all_reduce(
    x: torch.Tensor,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> torch.Tensor:
    """Return the sum of `x` over the group's ranks, on every rank.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. It is left
    alone, and the result is a new contiguous tensor, unless out=x asks for the sum in place.
    Wire: half of x along each edge of two trees, 2 x at most. Memory beside the result: four
    blocks, and a copy of an x that is not contiguous. TypeError for a dtype without a sum,
    ValueError for an `out` unlike x.
    """
    group = chosen(group)
    total = result_like(x, out, group)
    if group.size == 1:
        return total.copy_(x.detach())
    halves = [
        (blocks(part, block_bytes), blocks(half, block_bytes), place)
        for part, half, place in zip(
            x.detach().contiguous().view(-1).tensor_split(2),
            total.view(-1).tensor_split(2),
            double_tree(group.rank, group.size),
            strict=True,
        )
    ]
    # The half in which this rank is a leaf, and the other one.
    halves.sort(key=lambda half: len(half[2].children))
    leaf, inner = [list(reducing(*half)) for half in halves]
    with messages_of("double_tree_all_reduce", x):
        # Up, the half in which this rank is a leaf goes first: it waits for nobody, others for it.
        stream([*leaf, *inner], group)
        # Down, it goes second, block by block: a leaf's block has come through an inner rank.
        leaf, inner = [list(broadcasting(half, place)) for _, half, place in halves]
        both = zip_longest(inner, leaf)
        stream([move for pair in both for move in pair if move is not None], group)
    return total


def double_tree(rank: int, size: int) -> tuple[Place, Place]:
    """Return the rank's places in tree 0 and in tree 1, which is that of rank + 1 in tree 0."""

    def moved_by(shift: int) -> Place:
        parent, children = _in_order((rank + shift) % size + 1, size)
        return Place(
            None if parent is None else (parent - 1 - shift) % size,
            tuple((child - 1 - shift) % size for child in children),
        )

    return moved_by(0), moved_by(1)


def _in_order(number: int, size: int) -> Place:
    """Return the neighbours of `number`, 1 to size. The lowest set bit of a number is its level.

    Odd numbers are leaves. Above them are 2, 6, 10 and so on, then 4, 12, 20, then 8. A parent
    above `size` is replaced by its own parent, a right child above `size` by its left child.
    """
    level = number & -number
    parent = (number - level) | 2 * level
    if parent > size:
        parent = number - level
    reach = level // 2
    children = [number - reach] if reach else []
    while number + reach > size:
        reach //= 2
    if reach:
        children.append(number + reach)
    return Place(parent or None, tuple(children))
