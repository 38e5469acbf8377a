"""What makes ranks unequal: stragglers, slow nodes and links, and jitter.

    Straggler(5, 1.5)             what rank 5 computes takes 1.5 times as long
    SlowNode(range(8, 16), 3)     messages of these ranks, and collectives over dp that they are in
    SlowLink(3, 4, 2)             messages between ranks 3 and 4, and collectives over dp of both
    Jitter(0.02)                  every operation of every rank: longer by 2% on average, at random

Where several slow the same thing, the largest factor counts; stragglers of one rank multiply.
Collectives over dp of every microbatch, with zero 2 and 3, take longer by the same factor, as far
as they were exposed. Those of tp, cp and ep are inside an operation and keep their time: a slow
link between two ranks that share nothing else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.calc.checked_numbers import check_above_zero, check_not_negative, check_number, shown


@dataclass(frozen=True)
class Straggler:
    """A rank that computes more slowly. ValueError for a factor under 1."""

    rank: int
    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that are slow."""
        return (self.rank,)


@dataclass(frozen=True)
class SlowNode:
    """Ranks whose links to others are slower. ValueError for a factor under 1, or no rank."""

    ranks: tuple[int, ...]
    factor: float

    def __init__(self, ranks: Iterable[int], factor: float) -> None:
        _check_factor(factor)
        if isinstance(ranks, int):
            raise TypeError(f"ranks={ranks}: give all ranks of the node, such as range(8, 16)")
        object.__setattr__(self, "ranks", tuple(ranks))
        object.__setattr__(self, "factor", factor)
        if not self.ranks:
            raise ValueError("ranks=(): give the ranks of the slow node, such as range(8, 16)")


@dataclass(frozen=True)
class SlowLink:
    """A link between two ranks that is slower, both ways. ValueError for a factor under 1."""

    a: int
    b: int
    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        if self.a == self.b:
            raise ValueError(f"rank {self.a} has no link to itself: give two ranks")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its two ends."""
        return (self.a, self.b)


@dataclass(frozen=True)
class Jitter:
    """An operation's computing takes 1 + share * X times as long, X exponential with mean 1.

    A new X for each operation on each rank: it is never faster than without. Of n ranks that wait
    for each other the slowest counts, on average 1 + share * H_n, H_n = 1 + 1/2 + ... + 1/n, which
    is ln n + 0.58: jitter of 2% is 11% of an operation over 128 ranks.
    """

    share: float

    def __post_init__(self) -> None:
        check_not_negative(self.share, "share")


Disturbance = Straggler | SlowNode | SlowLink | Jitter


def _check_factor(factor: float) -> None:
    check_number(factor, "factor")
    check_above_zero(factor, "factor", "times as long as the others; give 1 or more")
    if factor < 1:
        raise ValueError(
            f"factor={shown(factor)}: of a slow one it is above 1, such as 1.5; where one rank is "
            "faster, the others are slow"
        )
