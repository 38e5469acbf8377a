"""Points for `fit`: times of all-reduces on a link, exact or with noise, and fits to hold against.

Noise is relative, as it is on a network: a busy minute costs percent, not microseconds.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.grade.graders.alpha_beta_costs import RING, cost

Point = tuple[str, int, int, float]
"""(algorithm, n, nbytes, seconds)"""

NOISE = 0.04
"""Each time is off by up to this part of itself."""
WORST = 3 * NOISE
"""By which a fit may be off where times are off by NOISE. A pair of points alone, the smallest and
the largest, is off by NOISE; what is off by three times that has listened to a few points only."""
_LUCKY = (0.6, 1.6)  # whose sign alone is wrong
_SIZES = [1024 * 4**step for step in range(12)]  # 1 KiB to 4 GiB


@dataclass(frozen=True, slots=True)
class Truth:
    """A link, and what it is asked about it."""

    alpha: float
    beta: float
    points: tuple[Point, ...]
    is_exact: bool


def draw_link(rng: random.Random) -> tuple[float, float]:
    """(alpha, beta) of some network: 5 to 20 us, 5 to 40 GB/s."""
    return rng.uniform(5e-6, 20e-6), 1 / rng.uniform(5e9, 40e9)


def exact_points(kinds: Sequence[tuple[str, int]], rng: random.Random) -> Truth:
    """Times of each (algorithm, n), to the last digit."""
    alpha, beta = draw_link(rng)
    points = [
        (algorithm, n, nbytes, cost(algorithm, n).seconds(alpha, beta, nbytes))
        for algorithm, n in kinds
        for nbytes in _SIZES
    ]
    rng.shuffle(points)
    return Truth(alpha, beta, tuple(points), is_exact=True)


def noisy_points(n: int, rng: random.Random) -> Truth:
    """Times of a ring with noise, of which absolute least squares makes a latency below 0."""
    while True:
        alpha, beta = draw_link(rng)
        times = [(size, cost(RING, n).seconds(alpha, beta, size)) for size in _SIZES]
        points = tuple(
            (RING, n, size, seconds * (1 + rng.uniform(-NOISE, NOISE))) for size, seconds in times
        )
        fitted = absolute_fit(points)[0] / alpha
        if fitted < 0 and not _LUCKY[0] < -fitted < _LUCKY[1]:
            return Truth(alpha, beta, points, is_exact=False)


def relative_fit(points: Sequence[Point]) -> tuple[float, float]:
    """(alpha, beta) of the least sum of squared errors, each in parts of its time."""
    return _least_squares(points, [1 / seconds for *_, seconds in points])


def absolute_fit(points: Sequence[Point]) -> tuple[float, float]:
    """(alpha, beta) of the least sum of squared errors, each in seconds: polyfit's line."""
    return _least_squares(points, [1.0 for _ in points])


def _least_squares(points: Sequence[Point], weights: Sequence[float]) -> tuple[float, float]:
    """Each point is an equation: latencies * alpha + bytes * beta = seconds."""
    rows = []
    for (algorithm, n, nbytes, seconds), weight in zip(points, weights, strict=True):
        latencies, share = cost(algorithm, n)
        rows.append((weight * latencies, weight * share * nbytes, weight * seconds))
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    xt, yt = (sum(r[i] * r[2] for r in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    return (xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant


def worst_error(alpha: float, beta: float, points: Sequence[Point]) -> float:
    """The largest part of its time by which a link's prediction of a point is off."""
    return max(abs(ratio - 1) for ratio in _ratios(alpha, beta, points))


def worst_factor(alpha: float, beta: float, points: Sequence[Point]) -> float:
    """The largest factor between a prediction and its point, whichever is larger; 1 is exact."""
    return max(
        max(ratio, 1 / ratio) if ratio > 0 else math.inf for ratio in _ratios(alpha, beta, points)
    )


def _ratios(alpha: float, beta: float, points: Sequence[Point]) -> list[float]:
    """By point: what a link would take, in parts of what was measured."""
    return [
        cost(algorithm, n).seconds(alpha, beta, nbytes) / seconds
        for algorithm, n, nbytes, seconds in points
    ]


def table(alpha: float, beta: float, points: Sequence[Point]) -> str:
    """A line per point: what was measured, and what a link would give."""
    lines = ["algorithm   n         bytes      seconds    predicted     off by"]
    for algorithm, n, nbytes, seconds in sorted(points):
        predicted = cost(algorithm, n).seconds(alpha, beta, nbytes)
        off = f"{100 * (predicted / seconds - 1):+.3g}%"
        lines.append(
            f"{algorithm:<9} {n:>3} {nbytes:>13,} {seconds:>12.4g} {predicted:>12.4g} {off:>10}"
        )
    return "\n".join(lines)
