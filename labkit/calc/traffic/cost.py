"""The cost of one collective by any algorithm: the result of `calc.collective`.

Each algorithm has a class for each of its operations (rings.py, trees.py). The class says what one
rank sends, in how many messages and steps, and how long they take on a link. This file has what all
of them share.

Seconds are by the alpha-beta model: a message of m bytes takes alpha + m beta. alpha is the latency
of one message in seconds, beta the time of one byte in seconds: 1 / (bytes per second, one
direction) of the link that a rank sends on. Every rank sends and receives at once; links are not
shared; arithmetic is free.

A tensor is cut into one chunk per rank by torch.tensor_split's rule. A Blocked collective sends it
in k blocks, one behind the other:

    steps   = first + every (k-1)         seconds = steps (alpha + D/k beta)

first: steps until the first block has arrived, 0 on a single rank. every: steps from one
block to the next. With more blocks the last rank starts earlier, and each costs its latency.

Paper: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from labkit import arguments
from labkit.calc.units import exact_bytes_text, number_text

Number = TypeVar("Number", int, float)


class Tiers(NamedTuple, Generic[Number]):
    """One number for the fast links, within a host, and one for the slow ones, between hosts."""

    fast: Number
    slow: Number

    @property
    def total(self) -> Number:
        """Both together."""
        return self.fast + self.slow


class Link(NamedTuple):
    """Seconds per message, and per byte."""

    alpha: float
    beta: float

    def message_seconds(self, nbytes: float) -> float:
        """Seconds of one message."""
        return self.alpha + nbytes * self.beta


@dataclass(frozen=True, kw_only=True, repr=False)
class Collective:
    """Bytes, messages, steps and seconds of one collective; `calc.collective` makes it."""

    operation: ClassVar[str]
    algorithm: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Arguments that not every algorithm has: root, block_bytes, ranks_per_host, splits."""
    rounds: ClassVar[int] = 1
    """Times that the tensor goes to n - 1 ranks, counted over all ranks."""

    world_size: int
    nbytes: float
    itemsize: int
    rank: int | None
    root: int = 0
    block_bytes: int | None = None
    ranks_per_host: int | None = None
    rings: int = 1
    splits: Sequence[Sequence[int]] | None = None

    @property
    def numel(self) -> int:
        """Elements of the tensor, rounded up."""
        return math.ceil(self.nbytes / self.itemsize)

    @property
    def sent_bytes(self) -> float:
        """Bytes that the rank sends, exactly; without a rank, the mean over all ranks."""
        if self.rank is None:
            return self._total_bytes() / self.world_size
        return self.itemsize * self._sent_numel(self.rank)

    @property
    def tier_bytes(self) -> Tiers[int]:
        """Exact bytes that the rank sends within its host, and to other hosts; by default of rank
        0."""
        fast, slow = self._tier_numel(self.rank or 0)
        return Tiers(self.itemsize * fast, self.itemsize * slow)

    @property
    def messages(self) -> float:
        """Messages that the rank sends; without a rank, the mean over all ranks."""
        if self.rank is None:
            return mean(self._messages(rank) for rank in range(self.world_size))
        return self._messages(self.rank)

    @property
    def steps(self) -> int:
        """Messages one after the other, until every rank has its result."""
        raise NotImplementedError

    @property
    def tier_steps(self) -> Tiers[int]:
        """Steps within hosts, and steps that wait for a link between hosts."""
        return Tiers(self.steps, 0)

    @property
    def num_hosts(self) -> int:
        """Number of hosts; 1 without ranks_per_host."""
        return self.world_size // self.ranks_per_host if self.ranks_per_host else 1

    def seconds(self, alpha: Any, beta: Any, *, shared: bool = False) -> float:
        """Seconds until every rank has its result; alpha seconds per message, beta per byte.

        With ranks_per_host each is a pair, (fast, slow), for links within a host and between hosts.
        shared: the ranks of a host share one link to other hosts.
        """
        if self.ranks_per_host is None:
            fast = slow = _link(alpha, beta)
        else:
            fast, slow = map(_link, _pair(alpha, "alpha"), _pair(beta, "beta"))
        return self._seconds(fast, slow, shared)

    def _host_of(self, rank: int) -> int:
        """Return the host of a rank; neighbouring ranks share one."""
        return rank % self.world_size // (self.ranks_per_host or self.world_size)

    def _total_bytes(self) -> float:
        """Bytes that all ranks send together. Algorithms divide them differently, but none sends
        fewer."""
        return self.rounds * (self.world_size - 1) * self.nbytes

    def _sent_numel(self, rank: int) -> int:
        raise NotImplementedError

    def _tier_numel(self, rank: int) -> Tiers[int]:
        return Tiers(self._sent_numel(rank), 0)

    def _messages(self, rank: int) -> int:
        raise NotImplementedError

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        raise NotImplementedError

    def __repr__(self) -> str:
        """`all_reduce by ring of 40 B over 4 ranks: rank 0 sends 56 B in 6 messages; 6 steps`."""
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        return (
            f"{self.operation} by {self.algorithm} of {exact_bytes_text(self.nbytes)} over "
            f"{self.world_size} ranks: {who} sends {exact_bytes_text(self.sent_bytes)} in "
            f"{number_text(self.messages)} messages; {self.steps} steps"
        )


class Blocked(Collective):
    """A collective in blocks of block_bytes; without them, messages and steps are of one block.

    Seconds are then those of the best number of equal blocks for the link.
    """

    options = frozenset({"block_bytes"})
    trees: ClassVar[int] = 1
    """Trees that share the tensor evenly, at the same time."""

    @property
    def steps(self) -> int:
        """Steps of all rounds, one after the other."""
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
    """Return the number of blocks of whole elements and at most `block_bytes`, at least one.

    num_blocks(10, itemsize=4, block_bytes=15) == 4: three elements each, and the last one.
    """
    whole, rest = divmod(numel, max(block_bytes // itemsize, 1))
    return max(whole + (rest > 0), 1)


def blocked_steps(first: int, every: int, blocks: int) -> int:
    """Return the steps until the last of `blocks` blocks has arrived."""
    return first + every * (blocks - 1) if first else 0


def best_num_blocks(nbytes: float, alpha: float, beta: float, first: int, every: int) -> int:
    """Return the fastest number of blocks, near sqrt((first - every) D beta / (every alpha)).

    At least 1, and at most one per byte. first >= every >= 1.
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


def chunk_numels(numel: int, world_size: int) -> list[int]:
    """Return the elements of each of the n chunks: the first numel % n are one longer.

    chunk_numels(10, 4) == [3, 3, 2, 2]
    """
    world_size, numel = (
        arguments.counted("world_size", world_size),
        arguments.counted("numel", numel, "0 or more", least=0),
    )
    shortest, num_longer = divmod(numel, world_size)
    return [shortest + (chunk < num_longer) for chunk in range(world_size)]


def _link(alpha: float, beta: float) -> Link:
    arguments.number("alpha (seconds per message)", alpha, "0 or more", least=0)
    arguments.number("beta (seconds per byte)", beta, "0 or more", least=0)
    if beta > 1:
        # A bandwidth passed where its inverse belongs gives absurd years, silently.
        raise ValueError(f"beta={beta} is seconds per byte: for a link of 360 GB/s pass 1 / 360e9")
    return Link(alpha, beta)


def _pair(links: object, name: str) -> Sequence[float]:
    if not isinstance(links, Sequence) or isinstance(links, str) or len(links) != 2:
        raise TypeError(
            f"{name}={links!r:.60}: give a pair, (fast, slow): one number for links within a "
            "host, and one for those between hosts"
        )
    return links
