"""Which all-reduce is the fastest, by the alpha-beta model: latencies against bytes.

                        latencies          bytes, one after the other
    ring                2(n-1)             2(n-1)/n D
    tree                about 4 log2 n     4D       in many blocks: more latencies
    double_tree         4 log2 n           2D       in many blocks: more latencies
    halving_doubling    2 log2 n           2(n-1)/n D       n no power of two: 2 and 2D more

Of these four none beats halving-doubling, in this model, where n is a power of two. (Shorter for a
few bytes is recursive doubling, in which whole tensors are swapped: log2 n of both alpha and
D beta. It is not written out here.) Rings and trees are used all the same, for a reason that the
model leaves out: links are shared. A ring's messages go to the next rank, a tree's mostly near, and
those of halving-doubling to another rank in each step, far away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.calc.checked_numbers import check_ranks
from labkit.calc.crossing import predicted_crossing
from labkit.calc.result import Result
from labkit.calc.traffic.collective import collective
from labkit.calc.units import seconds_text, size_text

_ALGORITHMS = ("ring", "tree", "double_tree", "halving_doubling")
_LARGEST_BYTES = 2**60


@dataclass(frozen=True, repr=False)
class Choice:
    """What each all-reduce would take, for one size on one link."""

    n: int
    nbytes: float
    seconds: Mapping[str, float]
    """By algorithm. Trees in as many blocks as are best for the link."""

    @property
    def fastest(self) -> str:
        """The algorithm that takes the least time; of equals the first, and so the simplest."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def __repr__(self) -> str:
        """A line per algorithm, the fastest first, with how many times its seconds."""
        least = self.seconds[self.fastest]
        ranks = "rank" if self.n == 1 else "ranks"
        lines = [f"{size_text(self.nbytes)} over {self.n} {ranks}: {self.fastest}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            times = f"{seconds / least:.2f} x" if least else ""
            lines.append(f"    {name:<18}{seconds_text(seconds):>9}  {times}".rstrip())
        return "\n".join(lines)


def choose_algorithm(n: int, nbytes: float, alpha: float, beta: float) -> Choice:
    """The predicted seconds of every all-reduce of `nbytes` over n ranks, and the fastest.

    alpha: seconds per message. beta: seconds per byte.
    choose_algorithm(n=8, nbytes=1e9, alpha=5e-6, beta=1 / 360e9).fastest == "halving_doubling"
    """
    n = check_ranks(n, "n")
    return Choice(n, nbytes, {each: _seconds(each, n, nbytes, alpha, beta) for each in _ALGORITHMS})


def crossover_bytes(first: str, second: str, n: int, alpha: float, beta: float) -> Result | None:
    """The size at which two all-reduces take the same time; None: one is ahead at every size.

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
