"""A tensor in k blocks, one behind the other: their number, steps and seconds.

    steps   = first + every (k-1)         seconds = steps (alpha + D/k beta)

first: steps until the first block is through, 0 if there is nowhere to go. every: steps from one
block to the next. With more blocks the last rank starts earlier, and each costs its latency.
"""

import math

from labkit.calc.traffic.checks import (
    check_above_zero,
    check_itemsize,
    check_link,
    check_not_negative,
    check_number,
    check_numel,
    is_whole,
    shown,
)


def num_blocks(numel: int, itemsize: int, block_bytes: int) -> int:
    """Blocks of at most `block_bytes` that hold whole elements; no elements are one empty block.

    num_blocks(10, itemsize=4, block_bytes=15) == 4: three elements each, and the last one.
    """
    numel, itemsize = check_numel(numel), check_itemsize(itemsize)
    check_number(block_bytes, "block_bytes")
    if not is_whole(block_bytes) or block_bytes < 1:
        raise ValueError(
            f"block_bytes={shown(block_bytes)}: a block has a whole number of bytes from 1"
        )
    whole, rest = divmod(numel, max(int(block_bytes) // itemsize, 1))
    return max(whole + (rest > 0), 1)


def blocked_steps(first: int, every: int, blocks: int) -> int:
    """Steps until the last of so many blocks is through."""
    check_number(blocks, "blocks")
    if not is_whole(blocks) or blocks < 1:
        raise ValueError(
            f"blocks={shown(blocks)}: a tensor travels in a whole number of blocks from 1"
        )
    return first + every * (blocks - 1) if first else 0


def best_num_blocks(nbytes: float, alpha: float, beta: float, first: int, every: int) -> int:
    """The k of the least seconds: near sqrt((first - every) D beta / (every alpha)).

    At least 1, at most one per byte. first and every: from 1, first the larger one.
    """
    most = max(int(nbytes), 1)
    if alpha == 0:
        return most if first > every else 1
    best = math.sqrt((first - every) * nbytes * beta / (every * alpha))
    below = min(max(int(best), 1), most)
    return min(
        (below, min(below + 1, most)),
        key=lambda k: blocked_steps(first, every, k) * (alpha + nbytes / k * beta),
    )


def blocked_seconds(
    nbytes: float,
    alpha: float,
    beta: float,
    *,
    first: int,
    every: int,
    block_bytes: float | None = None,
) -> float:
    """Seconds in blocks of `block_bytes`; None: in as many as are best for this link."""
    check_not_negative(nbytes, "nbytes")
    check_link(alpha, beta)
    if block_bytes is not None:
        reason = "a block has bytes, a finite number of them; None for the best size"
        check_above_zero(block_bytes, "block_bytes", reason)
    if first == 0:
        return 0.0
    if block_bytes is None:
        k = best_num_blocks(nbytes, alpha, beta, first, every)
    else:
        k = max(math.ceil(nbytes / block_bytes), 1)
    return blocked_steps(first, every, k) * (alpha + nbytes / k * beta)
