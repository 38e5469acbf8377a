"""What one collective costs, whatever its algorithm: the result of `calc.collective`.

Each algorithm's file has a class for each of its operations. The class says what one rank sends, in
how many messages and steps, and how long they take on a link. What all share is here.

Seconds are by the alpha-beta model: a message of m bytes takes alpha + m beta. alpha is the latency
of one message in seconds, beta the time of one byte in seconds: 1 / (bytes per second, one
direction) of the link that a rank sends on. Every rank sends and receives at once; links are not
shared; arithmetic is free.

Paper: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from labkit.calc.checked_numbers import check_not_negative, shown
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
    """How often the tensor goes to n - 1 ranks, counted over all ranks."""

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
        """Exact bytes that the rank sends on its host, and to others; rank 0, if none is given."""
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
        """Of these, steps within hosts, and steps that wait for a link between hosts."""
        return Tiers(self.steps, 0)

    @property
    def num_hosts(self) -> int:
        """One without ranks_per_host."""
        return self.world_size // self.ranks_per_host if self.ranks_per_host else 1

    def seconds(self, alpha: Any, beta: Any, *, shared: bool = False) -> float:
        """Seconds until every rank has its result; alpha seconds per message, beta per byte.

        With ranks_per_host each is a pair, (fast, slow): of links within a host, and between
        hosts. shared: the ranks of a host send to other hosts over one link.
        """
        if self.ranks_per_host is None:
            fast = slow = _link(alpha, beta)
        else:
            fast, slow = map(_link, _pair(alpha, "alpha"), _pair(beta, "beta"))
        return self._seconds(fast, slow, shared)

    def _host_of(self, rank: int) -> int:
        """Neighbouring numbers share a host."""
        return rank % self.world_size // (self.ranks_per_host or self.world_size)

    def _total_bytes(self) -> float:
        """What all ranks send together: no algorithm sends less, they share it out differently."""
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


def _link(alpha: float, beta: float) -> Link:
    check_not_negative(alpha, "alpha (seconds per message)")
    check_not_negative(beta, "beta (seconds per byte)")
    if beta > 1:
        # A bandwidth passed where its inverse belongs gives absurd years, silently.
        raise ValueError(f"beta={beta} is seconds per byte: for a link of 360 GB/s pass 1 / 360e9")
    return Link(alpha, beta)


def _pair(links: object, name: str) -> Sequence[float]:
    if not isinstance(links, Sequence) or isinstance(links, str) or len(links) != 2:
        raise TypeError(
            f"{name}={shown(links)}: give a pair, (fast, slow): one number for links within a "
            "host, and one for those between hosts"
        )
    return links
