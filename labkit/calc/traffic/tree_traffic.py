"""Bytes, messages, steps and seconds of a reduce and a broadcast along a binary tree.

n ranks, D bytes, k blocks. Ranks are counted from the root; the children of v are 2v+1 and 2v+2. D
goes once along each edge, up or down:

    per rank        sent bytes                            messages
    reduce          D, the root none                      k
    broadcast       D for each child                      k for each child
    all-reduce      D for each edge of the rank           k for each edge

A rank sends one message and receives one at a time, so v's first child is one step behind v and the
second two, and the next block follows two steps later. `first` is how far the last rank is behind
the root, 2 log2(n+1) - 2 in a full tree:

    steps of a reduce, of a broadcast       first + 2(k-1)          2 ranks: k
    steps of an all-reduce                  twice that

Paper: Sanders and Sibeyn, IPL 86(1), 2003.
"""

from labkit.calc.traffic.blocks import blocked_seconds, blocked_steps, num_blocks
from labkit.calc.traffic.checks import check_itemsize, check_numel, check_rank, check_ranks


def tree_reduce_sent_bytes(
    numel: int, itemsize: int, world_size: int, rank: int, root: int = 0
) -> int:
    """Exact bytes that `rank` sends: its partial sums, to its parent."""
    return _nbytes(numel, itemsize) * _num_parents(world_size, rank, root)


def tree_broadcast_sent_bytes(
    numel: int, itemsize: int, world_size: int, rank: int, root: int = 0
) -> int:
    """Exact bytes that `rank` sends: everything, to each of its children."""
    return _nbytes(numel, itemsize) * _num_children(world_size, rank, root)


def tree_all_reduce_sent_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """Exact bytes that `rank` sends: a reduce to rank 0, and a broadcast from there.

    1000 float32 over 8 ranks: rank 0 sends 8000, rank 1 12000, rank 3 8000, rank 7 4000.
    """
    return tree_reduce_sent_bytes(numel, itemsize, world_size, rank) + tree_broadcast_sent_bytes(
        numel, itemsize, world_size, rank
    )


def tree_reduce_messages(
    numel: int, itemsize: int, world_size: int, rank: int, block_bytes: int, root: int = 0
) -> int:
    """Messages that `rank` sends: one per block. An empty tensor is a block too."""
    return num_blocks(numel, itemsize, block_bytes) * _num_parents(world_size, rank, root)


def tree_broadcast_messages(
    numel: int, itemsize: int, world_size: int, rank: int, block_bytes: int, root: int = 0
) -> int:
    """Messages that `rank` sends: one per block and child."""
    return num_blocks(numel, itemsize, block_bytes) * _num_children(world_size, rank, root)


def tree_all_reduce_messages(
    numel: int, itemsize: int, world_size: int, rank: int, block_bytes: int
) -> int:
    """Messages that `rank` sends in both."""
    return tree_reduce_messages(
        numel, itemsize, world_size, rank, block_bytes
    ) + tree_broadcast_messages(numel, itemsize, world_size, rank, block_bytes)


def tree_broadcast_steps(world_size: int, blocks: int = 1) -> int:
    """Steps of a broadcast in so many blocks, and of a reduce. 4 for 8 ranks, 2 more per block."""
    world_size = check_ranks(world_size)
    return blocked_steps(_first(world_size), _every(world_size), blocks)


def tree_all_reduce_steps(world_size: int, blocks: int = 1) -> int:
    """Steps up and down again. 8 for 8 ranks, where a ring takes 14."""
    return 2 * tree_broadcast_steps(world_size, blocks)


def tree_broadcast_seconds(
    nbytes: float, n: int, alpha: float, beta: float, block_bytes: float | None = None
) -> float:
    """Seconds of a broadcast, and of a reduce; block_bytes None: the best for this link."""
    n = check_ranks(n, "n")
    return blocked_seconds(
        nbytes, alpha, beta, first=_first(n), every=_every(n), block_bytes=block_bytes
    )


def tree_all_reduce_seconds(
    nbytes: float, n: int, alpha: float, beta: float, block_bytes: float | None = None
) -> float:
    """Seconds of a reduce and a broadcast; block_bytes None: the best for this link."""
    return 2 * tree_broadcast_seconds(nbytes, n, alpha, beta, block_bytes)


def _num_parents(world_size: int, rank: int, root: int) -> int:
    check_rank(rank, world_size)
    check_rank(root, world_size, "root")
    return int(rank != root)


def _num_children(world_size: int, rank: int, root: int) -> int:
    """Before v's children come 2v + 1 ranks; of those that are left, two at most are its own."""
    check_rank(rank, world_size)
    check_rank(root, world_size, "root")
    from_root = (rank - root) % world_size
    return min(max(world_size - 1 - 2 * from_root, 0), 2)


def _first(world_size: int) -> int:
    """Steps from the root to the last rank.

    v + 1 in binary is a 1 and then the way from the root to v: 0 is a first child, which costs a
    step, 1 a second one, which costs two. So it costs a step per digit and one more per 1. Most of
    them has the last rank, or one before it whose way begins alike and ends in 1s only.
    """
    ways = (world_size, *((world_size >> i << i) - 1 for i in range(world_size.bit_length())))
    return max(way.bit_length() + way.bit_count() - 2 for way in ways if way > 0)


def _every(world_size: int) -> int:
    return min(world_size - 1, 2)


def _nbytes(numel: int, itemsize: int) -> int:
    check_numel(numel)
    check_itemsize(itemsize)
    return numel * itemsize
