"""A tensor in k blocks, one behind the other: their number, steps and seconds.

    steps   = first + every (k-1)         seconds = steps (alpha + D/k beta)

first: steps until the first block is through, 0 if there is nowhere to go. every: steps from one
block to the next. With more blocks the last rank starts earlier, and each costs its latency.
"""

import math
from typing import ClassVar

from labkit.calc.traffic.collective_cost import Collective, Link


class Blocked(Collective):
    """A collective in blocks of block_bytes; without them, messages and steps are of one block.

    Seconds are then of as many equal blocks as are best for the link.
    """

    options = frozenset({"block_bytes"})
    trees: ClassVar[int] = 1
    """That share the tensor evenly, at the same time."""

    @property
    def steps(self) -> int:
        """The rounds follow each other."""
        first, every = self._first_and_every()
        return self.rounds * blocked_steps(
            first, every, self._num_blocks(-(-self.numel // self.trees))
        )

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        first, every = self._first_and_every()
        nbytes = self.nbytes / self.trees
        if first == 0:
            return 0.0
        if self.block_bytes is None:
            k = best_num_blocks(nbytes, fast.alpha, fast.beta, first, every)
        else:
            k = max(math.ceil(nbytes / self.block_bytes), 1)
        return self.rounds * blocked_steps(first, every, k) * fast.message_seconds(nbytes / k)

    def _num_blocks(self, numel: int) -> int:
        return num_blocks(numel, self.itemsize, self.block_bytes) if self.block_bytes else 1

    def _first_and_every(self) -> tuple[int, int]:
        raise NotImplementedError


def num_blocks(numel: int, itemsize: int, block_bytes: int) -> int:
    """Blocks of at most `block_bytes` that hold whole elements; no elements are one empty block.

    num_blocks(10, itemsize=4, block_bytes=15) == 4: three elements each, and the last one.
    """
    whole, rest = divmod(numel, max(block_bytes // itemsize, 1))
    return max(whole + (rest > 0), 1)


def blocked_steps(first: int, every: int, blocks: int) -> int:
    """Steps until the last of so many blocks is through."""
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
