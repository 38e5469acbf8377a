"""Results of a sweep over sizes, fits of the alpha-beta model, and where the fastest changes.

Measured has the times. A Crossover is the size at which the faster algorithm changes, as measured
and by the model (labkit.calc.choice).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from labkit import calc
from labkit.calc.choice import Crossing, predicted_crossing
from labkit.calc.units import bytes_text, seconds_text, size_text
from labkit.comm import Topology
from labkit.measure.algorithms import Algorithm
from labkit.measure.alpha_beta_fit import Fit, equation, fit_alpha_beta, link_speed_text, solve

if TYPE_CHECKING:
    from labkit.viz.picture import Picture


ByName = dict[str, dict[int, float]]
"""By algorithm, then by bytes of the tensor."""
# Measured for comparison only; the others are the choices.
_YARDSTICKS = ("gloo", "shared_memory")
_MAX_CROSSOVERS = 3  # more crossings would hide the curves


@dataclass(frozen=True)
class Measured:
    """Times of all-reduces of float32; medians, fits and crossovers follow from them.

    measured.seconds["ring"][2**20]: the median; measured.fits["ring"].alpha; measured.crossovers.
    """

    world_size: int
    sizes: tuple[int, ...]
    """Bytes of the tensor on each rank, ascending."""
    algorithms: tuple[Algorithm, ...]
    samples: dict[str, dict[int, list[float]]] = field(repr=False)
    """By algorithm and size: seconds of every call."""
    topology: Topology | None = None
    """The throttled links it was measured on; None: this machine as it is."""

    @cached_property
    def seconds(self) -> ByName:
        """The median call; a call takes as long as its slowest rank."""
        return self._each(lambda name, nbytes: statistics.median(self.samples[name][nbytes]))

    @cached_property
    def algbw(self) -> ByName:
        """Bytes of the tensor per second."""
        return self._each(
            lambda name, nbytes: float(calc.algbw(nbytes, self.seconds[name][nbytes]))
        )

    @cached_property
    def busbw(self) -> ByName:
        """algbw times 2(n-1)/n: comparable with the link, at any n."""
        n = self.world_size
        return self._each(
            lambda name, nbytes: float(calc.busbw(nbytes, self.seconds[name][nbytes], n))
        )

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """alpha and beta of each algorithm, from its own medians and by its own formula.

        They are effective values that include the machine's other work. ValueError if only one size
        was measured.
        """
        return {
            one.name: fit_alpha_beta(
                self.sizes, list(self.seconds[one.name].values()), self.world_size, one.seconds
            )
            for one in self.algorithms
        }

    @cached_property
    def predicted(self) -> ByName:
        """Seconds by the model, with the algorithm's fitted alpha and beta."""
        return self._each(lambda name, nbytes: self.model(name)(nbytes))

    def model(self, name: str) -> Callable[[float], float]:
        """Seconds of an algorithm at any number of bytes, with its fitted alpha and beta.

        ValueError for one that was not measured, and if only one size was.
        """
        formula, fit = self._named(name).seconds, self.fits[name]
        return lambda nbytes: formula(nbytes, self.world_size, fit.alpha, fit.beta)

    def fit_together(self, *names: str) -> Fit:
        """One alpha and one beta for several algorithms: all of them, if none is named.

        If the model holds, algorithms differ in their numbers of latencies and bytes, but not in
        the cost of these. The residuals show how well it holds. Points are in order of names, then
        of sizes.
        """
        chosen = [self._named(name) for name in names] or self.algorithms
        return solve(
            equation(one.seconds, nbytes, self.world_size, self.seconds[one.name][nbytes])
            for one in chosen
            for nbytes in self.sizes
        )

    def crossover(self, first: str, second: str) -> Crossover | None:
        """Return where the faster of two algorithms changes, measured and by the model; None:
        nowhere."""
        measured = measured_crossing(
            self.sizes,
            list(self.seconds[self._named(first).name].values()),
            list(self.seconds[self._named(second).name].values()),
        )
        return crossover(
            first, second, measured, predicted_crossing(self.model(first), self.model(second))
        )

    @cached_property
    def crossovers(self) -> list[Crossover]:
        """Return all crossovers within the measured sizes, in the order of the algorithms."""
        pairs = combinations([one.name for one in self.algorithms], 2)
        found = (self.crossover(*pair) for pair in pairs)
        return [each for each in found if each is not None and self._is_within(each)]

    def _is_within(self, each: Crossover) -> bool:
        """Return whether the crossing is within the measured sizes; beyond, lines may meet
        anywhere."""
        sizes = (each.measured_bytes, each.predicted_bytes)
        return any(at is not None and self.sizes[0] <= at <= self.sizes[-1] for at in sizes)

    def table(self) -> str:
        """Times, bandwidths, fits and crossovers as aligned plain text."""
        return report(self)

    def draw(self, title: str | None = None) -> Picture:
        """Time and bus bandwidth over size: points measured, lines by the model."""
        return drawn(self, title)

    def show(self) -> None:
        """Show the picture: in the notebook, or, outside of one, as a file."""
        self.draw().show()

    def _named(self, name: str) -> Algorithm:
        for one in self.algorithms:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in self.algorithms)
        raise ValueError(f"{name!r} was not measured; there are {names}")

    def _each(self, of: Callable[[str, int], float]) -> ByName:
        return {
            one.name: {nbytes: of(one.name, nbytes) for nbytes in self.sizes}
            for one in self.algorithms
        }


def report(measured: Measured) -> str:
    """Write aligned plain text. If only one size was measured there is no fit, and no model."""
    has_model = len(measured.sizes) > 1
    parts = [_heading(measured), _times(measured, has_model=has_model)]
    if has_model:
        parts += [_fits(measured), _crossovers(measured)]
    return "\n\n".join(part for part in parts if part)


def _heading(measured: Measured) -> str:
    calls = {len(times) for by_size in measured.samples.values() for times in by_size.values()}
    where = f", on {measured.topology}" if measured.topology is not None else ""
    return (
        f"all-reduce of float32 on {measured.world_size} ranks, medians of "
        f"{'/'.join(map(str, sorted(calls)))} calls that took turns{where}"
    )


def _times(measured: Measured, *, has_model: bool) -> str:
    rows = [["size", "algorithm", "time", "algbw", "busbw", "model", "residual"]]
    for nbytes in measured.sizes:
        for number, one in enumerate(measured.algorithms):
            seconds = measured.seconds[one.name][nbytes]
            row = [
                "" if number else size_text(nbytes),
                one.name,
                seconds_text(seconds),
                f"{bytes_text(measured.algbw[one.name][nbytes])}/s",
                f"{bytes_text(measured.busbw[one.name][nbytes])}/s",
            ]
            if has_model:
                predicted = measured.predicted[one.name][nbytes]
                row += [seconds_text(predicted), f"{(seconds - predicted) / seconds:+.0%}"]
            rows.append(row)
    return aligned([row[: 7 if has_model else 5] for row in rows])


def _fits(measured: Measured) -> str:
    rows = [["", "alpha", "1 / beta", "R2", "worst residual"]]
    for name, fit in measured.fits.items():
        rows.append(
            [
                name,
                seconds_text(fit.alpha),
                link_speed_text(fit.beta),
                f"{fit.r2:.3f}",
                f"{fit.worst_residual:+.0%}",
            ]
        )
    return aligned(rows, left=1)


def _crossovers(measured: Measured) -> str:
    rows = [["faster below", "above", "measured", "by the model"]]
    for each in measured.crossovers:
        sizes = [
            "–" if at is None else bytes_text(at)
            for at in (each.measured_bytes, each.predicted_bytes)
        ]
        rows.append([each.small, each.large, *sizes])
    return aligned(rows) if len(rows) > 1 else ""


def aligned(rows: list[list[str]], left: int = 2) -> str:
    """Write columns of equal width; the first `left` of them flush left, numbers flush right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def drawn(measured: Measured, title: str | None = None) -> Picture:
    """Draw the curves with their models, and the sizes at which the fastest changes.

    If only one size was measured, draw points alone.
    """
    from labkit.viz.size_curves import (  # viz loads matplotlib, which only pictures need
        Curve,
        Mark,
        latency_bandwidth,
    )

    has_model = len(measured.sizes) > 1
    curves = [
        Curve(
            one.name,
            measured.sizes,
            [measured.seconds[one.name][nbytes] for nbytes in measured.sizes],
            [_quartiles(measured.samples[one.name][nbytes]) for nbytes in measured.sizes],
            measured.model(one.name) if has_model else None,
        )
        for one in measured.algorithms
    ]
    marks = [Mark(*mark) for each in _shown(measured) for mark in _marks(measured, each)]
    where = "" if measured.topology is None else ", throttled links"
    title = title or f"all-reduce on {measured.world_size} ranks{where}"
    return latency_bandwidth(curves, measured.world_size, marks=marks, title=title)


def _quartiles(seconds: list[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high


def _shown(measured: Measured) -> list[Crossover]:
    """Return all crossovers among the choices; of many, those at which the fastest changes."""
    if len(measured.sizes) < 2:
        return []
    names = [one.name for one in measured.algorithms]
    choices = [name for name in names if name not in _YARDSTICKS]
    choices = choices if len(choices) > 1 else names
    among = [each for each in measured.crossovers if {each.small, each.large} <= set(choices)]
    if len(among) <= _MAX_CROSSOVERS:
        return among
    return [each for each in among if _is_of_the_fastest(measured, each, choices)]


def _is_of_the_fastest(measured: Measured, each: Crossover, choices: list[str]) -> bool:
    if each.predicted_bytes is None:
        return False
    own = measured.model(each.small)(each.predicted_bytes)
    return own <= 1.001 * min(measured.model(name)(each.predicted_bytes) for name in choices)


def _marks(measured: Measured, each: Crossover) -> list[tuple[float, float, str, bool]]:
    """Return where the lines meet, and where the measured curves do, within the picture."""
    low, high = measured.sizes[0], measured.sizes[-1]
    marks = []
    if (at := each.predicted_bytes) is not None and low <= at <= high:
        marks.append((at, measured.model(each.small)(at), bytes_text(at), False))
    if (at := each.measured_bytes) is not None:
        name = "" if marks else bytes_text(at)
        marks.append((at, _between(measured, each.small, at), name, True))
    return marks


def _between(measured: Measured, name: str, at: float) -> float:
    """Return seconds at a size between two measured ones, on a straight line of logarithms."""
    for (low, low_s), (high, high_s) in pairwise(measured.seconds[name].items()):
        if low <= at <= high:
            share = math.log(at / low) / math.log(high / low)
            return low_s * (high_s / low_s) ** share
    raise AssertionError(f"a measured crossover lies between measured sizes, {at} does not")


@dataclass(frozen=True)
class Crossover:
    """`small` is faster for small tensors, `large` for large ones; the size where they meet.

    None: they don't meet among the sizes measured, or, by the model, at no size up to 1 TiB.
    """

    small: str
    large: str
    measured_bytes: float | None
    predicted_bytes: float | None

    def __repr__(self) -> str:
        """Both sizes in one line."""
        measured, predicted = (
            "nowhere" if nbytes is None else f"at {bytes_text(nbytes)}"
            for nbytes in (self.measured_bytes, self.predicted_bytes)
        )
        return (
            f"Crossover({self.small} below, {self.large} above: "
            f"measured {measured}, by the model {predicted})"
        )


def crossover(
    first: str, second: str, measured: Crossing | None, predicted: Crossing | None
) -> Crossover | None:
    """Return both crossings as one, or None if there is neither.

    If the two contradict each other, the model says which is faster below.
    """
    found = predicted or measured
    if found is None:
        return None
    if measured is not None and measured.first_is_below != found.first_is_below:
        measured = None
    small, large = (first, second) if found.first_is_below else (second, first)
    return Crossover(
        small,
        large,
        None if measured is None else measured.nbytes,
        None if predicted is None else predicted.nbytes,
    )


def measured_crossing(
    sizes: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> Crossing | None:
    """Return the one crossing that fits the measured times best, or None.

    sizes: ascending; first, second: seconds at each. Noise may make close curves cross more than
    once. Of all crossings (one faster below this size, the other above, or one everywhere) it
    returns the one that contradicts the times least, by the sum of |log ratio| over the sizes at
    which it is wrong. Between two sizes the log ratio is taken as straight over the
    logarithm of the size.
    """
    lead = [math.log(one / other) for one, other in zip(first, second)]  # below 0: first is faster
    best, found = min(sum(lead), -sum(lead)), None
    for sign in (1, -1):
        for split in range(1, len(lead)):
            score = sign * (sum(lead[:split]) - sum(lead[split:]))
            if score < best - 1e-12:
                best, found = score, (split, sign == 1)
    if found is None:
        return None
    split, first_is_below = found
    # The best split has the lead change its sign right there, or a neighbour would be better.
    low, high = lead[split - 1], lead[split]
    share = low / (low - high) if low != high else 0.0
    left, right = sizes[split - 1], sizes[split]
    # Rounding must not push it out of the interval that it lies in.
    return Crossing(min(max(left * (right / left) ** share, left), right), first_is_below)
