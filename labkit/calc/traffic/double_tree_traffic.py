"""Bytes, messages, steps and seconds of a double-tree all-reduce.

n ranks in order, D bytes. Each half of the tensor, the first of an odd number longer by one, goes
up and down a tree of its own. The tree over numbers 1 to m: its root is the largest power of two in
m, to its left is the tree over those before it, to its right one over those behind it, made in the
same way. In tree 0, rank r is number r + 1. Tree 1 is tree 0 moved to the left by one rank, round
the end.

    per rank      sent bytes                                              messages
    all-reduce    D/2 for each edge of tree 0 + D/2 for each of tree 1    k for each edge

Steps, with k blocks of each half: by the paper's schedule a rank's two edges in either direction
take turns, so that a level costs 2 steps at most and a further block 2, up and down again:
4 (floor(log2 n) + k - 1), or 2k for two ranks. That suffices; some n need fewer.
Paper: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009.
"""

from labkit.calc.traffic.blocks import blocked_seconds, blocked_steps, num_blocks
from labkit.calc.traffic.checks import (
    check_itemsize,
    check_not_negative,
    check_numel,
    check_rank,
    check_ranks,
)


def double_tree_all_reduce_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: its half of the tensor along each edge, up or down.

    1001 float32 over 4 ranks, halves 501 and 500: rank 1 has three edges in tree 0 and one in
    tree 1, and sends (3 * 501 + 500) * 4.
    """
    check_itemsize(itemsize)
    edges = _num_edges(world_size, rank)
    return itemsize * sum(n * half for n, half in zip(edges, _halves(numel), strict=True))


def double_tree_all_reduce_messages(
    numel: int, itemsize: int, world_size: int, rank: int, block_bytes: int
) -> int:
    """Messages that `rank` sends: one per block and edge. An empty half is a block too."""
    return sum(
        n * num_blocks(half, itemsize, block_bytes)
        for n, half in zip(_num_edges(world_size, rank), _halves(numel), strict=True)
    )


def double_tree_all_reduce_steps(world_size: int, blocks: int = 1) -> int:
    """Steps that suffice, with so many blocks of each half. 12 for 8 ranks, 4 more per block."""
    return 2 * blocked_steps(*_first_and_every(check_ranks(world_size)), blocks)


def double_tree_all_reduce_seconds(
    nbytes: float, n: int, alpha: float, beta: float, block_bytes: float | None = None
) -> float:
    """Seconds of both trees, at the same time; block_bytes None: the best for this link."""
    check_not_negative(nbytes, "nbytes")
    first, every = _first_and_every(check_ranks(n, "n"))
    return 2 * blocked_seconds(
        nbytes / 2, alpha, beta, first=first, every=every, block_bytes=block_bytes
    )


def _halves(numel: int) -> tuple[int, int]:
    numel = check_numel(numel)
    return numel - numel // 2, numel // 2


def _num_edges(world_size: int, rank: int) -> tuple[int, int]:
    """Neighbours of `rank` in each tree."""
    rank, world_size = check_rank(rank, world_size), int(world_size)
    return _neighbours(rank + 1, world_size), _neighbours((rank + 1) % world_size + 1, world_size)


def _neighbours(number: int, size: int) -> int:
    """Parent and children of `number` in the tree over 1 to `size`: found by going down to it."""
    has_parent = False
    while True:
        root = 1 << (size.bit_length() - 1)
        if number == root:
            return has_parent + (root > 1) + (size > root)
        if number < root:
            size = root - 1
        else:
            number, size = number - root, size - root
        has_parent = True


def _first_and_every(world_size: int) -> tuple[int, int]:
    """Two steps per level and two per block; one where nobody has two children: two ranks."""
    every = min(world_size - 1, 2)
    depth = world_size.bit_length() - 1
    return every * depth, every
