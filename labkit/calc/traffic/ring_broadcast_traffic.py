"""Bytes, messages, steps and seconds of a broadcast along a chain, in blocks.

n ranks, D bytes, k blocks: every rank sends D to the next one, in k messages, but for the last,
which is the one before the root. The first block is there after n-1 steps, and every step brings
one more:

    steps       n - 1 + k - 1
    seconds     (n + k - 2) (alpha + D/k beta)          least for k = sqrt((n-2) D beta / alpha)

Paper: van de Geijn and Watts, "SUMMA: scalable universal matrix multiplication algorithm",
Concurrency: Practice and Experience 9(4), 1997.
"""

from labkit.calc.traffic.blocks import (
    best_num_blocks,
    blocked_seconds,
    blocked_steps,
    num_blocks,
)
from labkit.calc.traffic.checks import (
    check_itemsize,
    check_link,
    check_not_negative,
    check_numel,
    check_rank,
    check_ranks,
)


def ring_broadcast_sent_bytes(
    numel: int, itemsize: int, world_size: int, rank: int, root: int = 0
) -> int:
    """Exact bytes that `rank` sends: all of them, or none at the end of the chain."""
    check_numel(numel)
    check_itemsize(itemsize)
    return numel * itemsize * _is_before_another(world_size, rank, root)


def ring_broadcast_messages(
    numel: int, itemsize: int, world_size: int, rank: int, block_bytes: int, root: int = 0
) -> int:
    """Messages that `rank` sends: one per block. An empty tensor is a block too."""
    blocks = num_blocks(numel, itemsize, block_bytes)
    return blocks * _is_before_another(world_size, rank, root)


def ring_broadcast_steps(world_size: int, blocks: int = 1) -> int:
    """Steps of a broadcast in so many blocks. 7 for 8 ranks, and one more for each more block."""
    check_ranks(world_size)
    return blocked_steps(world_size - 1, 1, blocks)


def ring_broadcast_seconds(
    nbytes: float, n: int, alpha: float, beta: float, block_bytes: float | None = None
) -> float:
    """Seconds until the last rank has everything; block_bytes None: the best for this link."""
    check_ranks(n, "n")
    return blocked_seconds(nbytes, alpha, beta, first=n - 1, every=1, block_bytes=block_bytes)


def ring_broadcast_best_block_bytes(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """The size of block that makes it fastest: shorter for more ranks and for cheaper messages."""
    check_ranks(n, "n")
    check_not_negative(nbytes, "nbytes")
    check_link(alpha, beta)
    return nbytes / best_num_blocks(nbytes, alpha, beta, first=max(n - 1, 1), every=1)


def _is_before_another(world_size: int, rank: int, root: int) -> bool:
    check_rank(rank, world_size)
    check_rank(root, world_size, "root")
    return (rank + 1) % world_size != root
