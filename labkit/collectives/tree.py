r"""Reduce and broadcast along a binary tree of ranks; one after the other they are an all-reduce.

Rank r has the children 2r + 1 and 2r + 2, if these ranks exist. With another root, ranks count from
it and wrap around. Eight ranks, root 0, "37" is the sum of rank 3's tensor and rank 7's:

             0              reduce     7 sends 7 to 3; 3 sends 37 and 4 sends 4 to 1; 1 sends 1347
          /     \                      and 2 sends 256 to 0, which then has the sum
        1         2         broadcast  0 sends to 1 and 2, they to 3, 4, 5 and 6, and 3 to 7: the
      /   \     /   \                  same edges, the other way
     3     4   5     6
    /
   7

Steps, if a rank sends and receives one message at a time: about 2 log2 n for a reduce or a
broadcast, because a rank serves its two children one after the other. A chain needs n - 1.
A long tensor goes in blocks, each sent on as soon as it is complete. The k-th block arrives 2(k-1)
steps after the first, however deep the tree.
Wire, D bytes: D along each edge, up in a reduce, down in a broadcast. In an all-reduce the busiest
rank sends 3D, a ring's ranks 2(n-1)/n D each: trees are for many ranks and short tensors.
Paper: Sanders and Sibeyn, "A bandwidth latency tradeoff for broadcast and reduction", Information
Processing Letters 86(1), 2003. (For whole tensors MPI libraries use binomial trees, in which every
rank that has the tensor keeps sending it: ceil(log2 n) steps.)
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from labkit.collectives.stream import (
    BLOCK_BYTES,
    Blocks,
    Move,
    blocks,
    copy_like,
    result_like,
    stream,
)
from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen
from labkit.comm.member import messages_of


class Place(NamedTuple):
    """A rank's place in a tree: the ranks next to it."""

    parent: int | None
    """None: this rank is the root."""
    children: tuple[int, ...]


def tree_reduce(
    x: torch.Tensor,
    root: int = 0,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> torch.Tensor | None:
    """Return the sum of `x` over the group's ranks, on rank `root`; None on the others.

    x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. The result
    is a new contiguous tensor and x is unchanged, unless the root gives an `out`.
    Adjoint of tree_broadcast. Wire: x from every rank but the root. Memory on a rank with children:
    its partial sums, as large as x, and four blocks. TypeError for a dtype without a sum,
    ValueError for a `root` outside the group and an `out` unlike x.
    """
    group = chosen(group)
    tensor_arguments.member(root, group, "root")
    total = result_like(x, out if group.rank == root else None, group)
    with messages_of("tree_reduce", x, root):
        _reduce(x, total, root, group, block_bytes)
    return total if group.rank == root else None


def tree_broadcast(
    x: torch.Tensor,
    root: int = 0,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> torch.Tensor:
    """Return rank `root`'s `x` on every rank; on the others `x` only gives shape and dtype.

    x: any shape, any size from 0, any dtype. The result is a new contiguous tensor and x is
    unchanged, unless out=x asks for it in place.
    Adjoint of tree_reduce. Wire: x to each child, so 2 x, x or nothing. ValueError for a `root`
    outside the group and an `out` unlike x.
    """
    group = chosen(group)
    tensor_arguments.member(root, group, "root")
    result = copy_like(x, out, group)
    if group.rank == root:
        result.copy_(x.detach())
    place = binary_tree(group.rank, group.size, root)
    with messages_of("tree_broadcast", x, root):
        stream(broadcasting(blocks(result.view(-1), block_bytes), place), group)
    return result


def tree_all_reduce(
    x: torch.Tensor,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> torch.Tensor:
    """Return the sum of `x` over the group's ranks, on every rank: a reduce to rank 0, and a
    broadcast.

    x, out and errors: as for tree_reduce, with out=x for the sum in place.
    Wire: x to each neighbour in the tree, so x, 2 x or 3 x. Memory: the result and four blocks.
    """
    group = chosen(group)
    total = result_like(x, out, group)
    with messages_of("tree_all_reduce", x):
        _reduce(x, total, 0, group, block_bytes)
        return tree_broadcast(total, 0, group, out=total, block_bytes=block_bytes)


def binary_tree(rank: int, size: int, root: int) -> Place:
    """Return the rank's place in the tree drawn at the top of this file."""
    number = (rank - root) % size
    parent = None if number == 0 else ((number - 1) // 2 + root) % size
    children = range(2 * number + 1, min(2 * number + 3, size))
    return Place(parent, tuple((child + root) % size for child in children))


def reducing(parts: Blocks, totals: Blocks, place: Place) -> Iterator[Move]:
    """Yield a reduce: add each block to those of the children, and send the sum to the parent."""
    targets = () if place.parent is None else (place.parent,)
    for part, total in zip(parts, totals, strict=True):
        if place.children:
            yield Move(total, place.children, targets, part)
        else:
            yield Move(part, (), targets)


def broadcasting(totals: Blocks, place: Place) -> Iterator[Move]:
    """Yield a broadcast: each block arrives from the parent and goes to the children."""
    sources = () if place.parent is None else (place.parent,)
    for total in totals:
        yield Move(total, sources, place.children)


def _reduce(
    x: torch.Tensor, total: torch.Tensor, root: int, group: Group, block_bytes: int
) -> None:
    """Leave in `total` the sum at the root, and partial sums on other ranks with children."""
    if group.size == 1:
        total.copy_(x.detach())
    place = binary_tree(group.rank, group.size, root)
    parts = blocks(x.detach().contiguous().view(-1), block_bytes)
    stream(reducing(parts, blocks(total.view(-1), block_bytes), place), group)
