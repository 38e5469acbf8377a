"""Fit alpha and beta of a link to times that were measured on it.

Every formula of labkit.calc is a number of latencies times alpha plus a number of bytes times beta,
so a measured time is one linear equation in the two:

    ring all-reduce of D bytes on n ranks:   2(n-1) alpha + 2(n-1)/n D beta = seconds

With more times than unknowns no pair solves all of them. The one taken has the least sum of
squared RELATIVE errors, ((model - seconds) / seconds)^2. Three reasons:

- Times from 1 KiB to 64 MiB span several powers of ten. By absolute errors the largest alone would
  decide: an alpha wrong by a factor of ten is lost in the noise at 64 MiB.
- The noise of a time grows with it (a busy machine is slower by percent, not by microseconds), so a
  relative error of 5% says the same at every size.
- What goes wrong makes times longer. A time that is ten times too long has a relative error of 0.9
  and can never count for more than 1; its absolute error would pull everything towards it.

Model: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit import arguments, calc

Formula = Callable[[float, int, float, float], float]
"""(nbytes, n, alpha, beta) -> seconds, such as `all_reduce_seconds`."""

# Directions of two columns closer than this (sine squared) are one: sizes that differ by 0.1 %.
_SAME_DIRECTION = 1e-6


class Equation(NamedTuple):
    """One measurement: latencies * alpha + nbytes * beta = seconds."""

    latencies: float
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A link fitted to points, and how well the points agree."""

    alpha: float
    """Seconds per message, never below 0."""
    beta: float
    """Seconds per byte, never below 0."""
    r2: float
    """The share of the squared relative errors of the best constant that the model explains."""
    residuals: tuple[float, ...]
    """By point: (measured - model) / measured. 0.1: 10% of the time is not in the model."""

    @property
    def bytes_per_s(self) -> float:
        """1 / beta, the speed of the link; infinite if the points show no cost of bytes."""
        return 1 / self.beta if self.beta else math.inf

    @property
    def worst_residual(self) -> float:
        """The residual that is farthest from 0, with its sign."""
        return max(self.residuals, key=abs)

    def __repr__(self) -> str:
        """Write the fit in one line."""
        return (
            f"Fit(alpha={calc.seconds_text(self.alpha)}, {link_speed_text(self.beta)}, "
            f"R2={self.r2:.3f}, worst residual {self.worst_residual:+.1%})"
        )


def link_speed_text(beta: float) -> str:
    """Write 1 / beta: "1.25 GB/s"."""
    return f"{calc.bytes_text(1 / beta)}/s" if beta else "no cost of bytes"


def all_reduce_seconds(
    nbytes: float,
    n: int,
    alpha: float,
    beta: float,
    algorithm: str = "ring",
    block_bytes: int | None = None,
) -> float:
    """Return calc's seconds of an all-reduce by one of its algorithms."""
    asked = calc.collective("all_reduce", algorithm, n, nbytes, block_bytes=block_bytes)
    return asked.seconds(alpha, beta)


def fit_alpha_beta(
    nbytes: Sequence[float],
    seconds: Sequence[float],
    n: int,
    formula: Formula = all_reduce_seconds,
) -> Fit:
    """Fit the alpha and beta with which `formula` comes closest to measured times.

    nbytes, seconds: one of each per point, at two sizes or more. n: ranks. formula: that of the
    measured collective; a ring all-reduce by default. A point that is given several times counts
    several times.

    Both are at least 0: if noise would make one negative, it is 0 and the other is fitted alone.
    Raises ValueError for times that are not above 0, for points that cannot separate alpha and
    beta, and for a formula that is not linear in the two; TypeError for anything but a list, a
    number, a formula.
    """
    if len(nbytes) != len(seconds):
        raise ValueError(
            f"{len(nbytes)} sizes and {len(seconds)} times: give one time for each size"
        )
    return solve(equation(formula, size, n, time) for size, time in zip(nbytes, seconds))


def equation(formula: Formula, nbytes: float, n: int, seconds: float) -> Equation:
    """Return the equation of one measured time. ValueError: see fit_alpha_beta."""
    arguments.number("seconds", seconds, f"a measured time is above 0, at {nbytes} bytes", above=0)
    latencies, sent_bytes = formula(nbytes, n, 1, 0), formula(nbytes, n, 0, 1)
    both = formula(nbytes, n, 0.5, 0.25)
    if not math.isclose(both, 0.5 * latencies + 0.25 * sent_bytes, rel_tol=1e-9):
        raise ValueError(
            f"{getattr(formula, '__name__', formula)} is not linear in alpha and beta, so two "
            "numbers cannot be fitted to it; use a formula like all_reduce_seconds"
        )
    if latencies == 0 == sent_bytes:
        raise ValueError(f"n={n} sends nothing, so a time says nothing of a link: give 2 or more")
    return Equation(latencies, sent_bytes, seconds)


def solve(equations: Iterable[Equation]) -> Fit:
    """Return the parameters of the least squared relative error, with neither below 0.

    Equations of different formulas may be mixed, since they share the link.
    """
    equations = list(equations)
    # Divided by its time, an equation is x alpha + y beta = 1.
    rows = [(one.latencies / one.seconds, one.nbytes / one.seconds) for one in equations]
    alpha, beta = _least_squares(rows)
    residuals = tuple(1 - (x * alpha + y * beta) for x, y in rows)
    return Fit(alpha, beta, _explained(equations, residuals), residuals)


def _least_squares(rows: list[tuple[float, float]]) -> tuple[float, float]:
    xx, yy = sum(x * x for x, _ in rows), sum(y * y for _, y in rows)
    xy = sum(x * y for x, y in rows)
    x1, y1 = sum(x for x, _ in rows), sum(y for _, y in rows)
    if xx * yy - xy * xy <= _SAME_DIRECTION * xx * yy:
        raise ValueError(
            f"{len(rows)} points of one size cannot tell alpha from beta: measure a size at which "
            "latency counts and one at which bytes do, such as 1 KiB and 16 MiB"
        )
    determinant = xx * yy - xy * xy
    alpha, beta = (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant
    if alpha >= 0 and beta >= 0:
        return alpha, beta
    # The best allowed pair is on the edge: one of the two is 0. All x, y are at least 0.
    edges = [(x1 / xx, 0.0), (0.0, y1 / yy)]
    return min(edges, key=lambda edge: sum((1 - x * edge[0] - y * edge[1]) ** 2 for x, y in rows))


def _explained(equations: list[Equation], residuals: Sequence[float]) -> float:
    """Return R2 under the weights of the fit, against the best constant time."""
    inverse = [1 / one.seconds for one in equations]
    constant = sum(inverse) / sum(each * each for each in inverse)
    unexplained = sum(residual * residual for residual in residuals)
    in_all = sum((1 - constant * each) ** 2 for each in inverse)
    if in_all <= 1e-18:  # all times are equal, as if only latency counts
        return 1.0 if unexplained <= 1e-18 else 0.0
    return 1 - unexplained / in_all
