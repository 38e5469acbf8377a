"""The fastest all-reduce by the alpha-beta model: latencies against bytes.

                        latencies          bytes, one after the other
    ring                2(n-1)             2(n-1)/n D
    tree                about 4 log2 n     4D       in many blocks: more latencies
    double_tree         4 log2 n           2D       in many blocks: more latencies
    halving_doubling    2 log2 n           2(n-1)/n D       n no power of two: 2 and 2D more

If n is a power of two, halving-doubling is the fastest of the four in this model. (For a few bytes
recursive doubling is shorter: ranks swap whole tensors, log2 n of both alpha and D beta. It is not
written out here.) Rings and trees are used all the same, because real links are shared, which the
model leaves out. A ring's messages go to the next rank and a tree's mostly to near ones, while
those of halving-doubling go to another, distant rank in each step.

`crossover_bytes` is the size at which another algorithm becomes the faster one:

    seconds  |  ring           ring
             |- - - - - - - x      below x the tree is faster, above it the ring
             |  tree     .     tree
             +----------------------- bytes

`algbw` and `busbw` are bandwidths of a collective that was timed: D bytes over n ranks in t
seconds. For all_gather and reduce_scatter D is the whole tensor:

    algbw    D / t                               what the caller gets
    busbw    D / t * 2(n-1)/n    all_reduce      what each link reached
                     (n-1)/n     reduce_scatter, all_gather, all_to_all
                     1           broadcast

Source of the factors: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from labkit import arguments
from labkit.calc.result import Result
from labkit.calc.traffic.collective import collective
from labkit.calc.units import bytes_text, seconds_text, size_text

SMALLEST_BYTES, LARGEST_BYTES = 1.0, 2.0**40
_SAMPLES_PER_DOUBLING = 10  # formulas with blocks have steps in them
_HALVINGS = 60
_ROUNDING = 1e-13
"""Seconds that differ by less than this share are equal but for rounding."""


class Crossing(NamedTuple):
    """Two curves change places at `nbytes`; `first_is_below`: the first is faster below it."""

    nbytes: float
    first_is_below: bool


def predicted_crossing(
    first: Callable[[float], float],
    second: Callable[[float], float],
    largest_bytes: float = LARGEST_BYTES,
) -> Crossing | None:
    """Return the smallest size up to `largest_bytes` at which two curves cross, or None."""
    doublings = math.log2(largest_bytes / SMALLEST_BYTES)
    num_samples = math.ceil(doublings * _SAMPLES_PER_DOUBLING)

    def lead(nbytes: float) -> float:
        return first(nbytes) - second(nbytes)

    low = at_low = 0.0  # the last size at which they differ
    for number in range(num_samples + 1):
        high = SMALLEST_BYTES * 2 ** (doublings * number / num_samples)
        at_high = lead(high)
        if abs(at_high) <= _ROUNDING * abs(first(high)):
            continue  # they meet, and may cross
        if low and (at_high > 0) != (at_low > 0):
            return Crossing(_bisected(lead, low, high), at_low < 0)
        low, at_low = high, at_high
    return None


def _bisected(lead: Callable[[float], float], low: float, high: float) -> float:
    """Return the size at which `lead` changes its sign, by geometric means."""
    is_above = lead(low) > 0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if (lead(middle) > 0) == is_above:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


_ALGORITHMS = ("ring", "tree", "double_tree", "halving_doubling")
_LARGEST_BYTES = 2**60


@dataclass(frozen=True, repr=False)
class Choice:
    """The predicted seconds of each all-reduce, for one size on one link."""

    n: int
    nbytes: float
    seconds: Mapping[str, float]
    """By algorithm; trees send the number of blocks that is best for the link."""

    @property
    def fastest(self) -> str:
        """The algorithm that takes the least time; of equals the first, which is the simplest."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def __repr__(self) -> str:
        """Write a line per algorithm, the fastest first, each with its multiple of the fastest."""
        least = self.seconds[self.fastest]
        ranks = "rank" if self.n == 1 else "ranks"
        lines = [f"{size_text(self.nbytes)} over {self.n} {ranks}: {self.fastest}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            times = f"{seconds / least:.2f} x" if least else ""
            lines.append(f"    {name:<18}{seconds_text(seconds):>9}  {times}".rstrip())
        return "\n".join(lines)


def choose_algorithm(n: int, nbytes: float, alpha: float, beta: float) -> Choice:
    """Predict the seconds of every all-reduce of `nbytes` over n ranks, and choose the fastest.

    alpha: seconds per message. beta: seconds per byte.
    choose_algorithm(n=8, nbytes=1e9, alpha=5e-6, beta=1 / 360e9).fastest == "halving_doubling"
    """
    n = arguments.counted("n", n)
    return Choice(n, nbytes, {each: _seconds(each, n, nbytes, alpha, beta) for each in _ALGORITHMS})


def crossover_bytes(first: str, second: str, n: int, alpha: float, beta: float) -> Result | None:
    """Return the size at which two all-reduces take the same time, or None.

    Below it the one with fewer latencies is faster, above it the one with fewer bytes.
    ValueError for a name that is not in `choose_algorithm`.
    """
    for name in (first, second):
        if name not in _ALGORITHMS:
            raise ValueError(
                f"no all-reduce is called {name!r}; there are {', '.join(_ALGORITHMS)}"
            )

    found = predicted_crossing(
        lambda nbytes: _seconds(first, n, nbytes, alpha, beta),
        lambda nbytes: _seconds(second, n, nbytes, alpha, beta),
        _LARGEST_BYTES,
    )
    if found is None:
        return None
    return Result(found.nbytes, "bytes", f"{first} and {second} take the same time")


def _seconds(algorithm: str, n: int, nbytes: float, alpha: float, beta: float) -> float:
    return collective("all_reduce", algorithm, n, nbytes).seconds(alpha, beta)


_SOURCE = "nccl-tests, doc/PERFORMANCE.md"


def algbw(nbytes: float, seconds: float) -> Result:
    """Algorithm bandwidth, in bytes per second: the caller's bytes D over the time.

    It falls as ranks are added even when every link is busy, so it says nothing about the links.
    """
    arguments.number("nbytes", nbytes, "0 or more", least=0)
    arguments.number("seconds", seconds, "a bandwidth needs a finite time above 0", above=0)
    how = f"{bytes_text(nbytes)} / {seconds_text(seconds)}"
    return Result(nbytes / seconds, "bytes/s", "algbw", "D / t", how, source=_SOURCE)


def busbw(nbytes: float, seconds: float, n: int, kind: str = "all_reduce") -> Result:
    """Bus bandwidth, in bytes per second: algbw times the share of D that each link must carry.

    It compares with the link's speed at any n.
    """
    n = arguments.counted("n", n)
    ring = (n - 1) / n
    factors = {
        "all_reduce": 2 * ring,
        "reduce_scatter": ring,
        "all_gather": ring,
        "all_to_all": ring,
        "broadcast": 1.0,
    }
    if not isinstance(kind, str) or kind not in factors:
        raise ValueError(f"no bus factor for {kind!r}; there is one for {', '.join(factors)}")
    alone, factor = algbw(nbytes, seconds), factors[kind]
    how = f"{factor:.4g} * {alone}"
    return Result(alone.value * factor, "bytes/s", "busbw", "factor * D / t", how, source=_SOURCE)
