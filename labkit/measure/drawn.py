"""A sweep as a picture: its curves, and where the fastest of them change places."""

import math
import statistics
from itertools import pairwise

from labkit.calc.units import bytes_text
from labkit.measure.crossing import Crossover
from labkit.measure.measured import Measured
from labkit.viz.curve import Curve, Mark
from labkit.viz.picture import Picture
from labkit.viz.size_curves import latency_bandwidth

# Measured for comparison: what one may choose among is the others.
_YARDSTICKS = ("gloo", "shared_memory")
_MAX_CROSSOVERS = 3  # more of them hide the curves


def drawn(measured: Measured, title: str | None = None) -> Picture:
    """Curves with their models; where one size was measured, points alone."""
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
    marks = [mark for each in _shown(measured) for mark in _marks(measured, each)]
    where = "" if measured.topology is None else ", paced links"
    title = title or f"all-reduce on {measured.world_size} ranks{where}"
    return latency_bandwidth(curves, measured.world_size, marks=marks, title=title)


def _quartiles(seconds: list[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high


def _shown(measured: Measured) -> list[Crossover]:
    """All crossovers among the choices; of many, those at which the fastest changes."""
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


def _marks(measured: Measured, each: Crossover) -> list[Mark]:
    """Where the lines meet, and where the curves through the points do; within what is drawn."""
    low, high = measured.sizes[0], measured.sizes[-1]
    marks = []
    if (at := each.predicted_bytes) is not None and low <= at <= high:
        marks.append(Mark(at, measured.model(each.small)(at), bytes_text(at), is_measured=False))
    if (at := each.measured_bytes) is not None:
        name = "" if marks else bytes_text(at)
        marks.append(Mark(at, _between(measured, each.small, at), name, is_measured=True))
    return marks


def _between(measured: Measured, name: str, at: float) -> float:
    """Seconds at a size between two measured ones: on a straight line of the logarithms."""
    for (low, low_s), (high, high_s) in pairwise(measured.seconds[name].items()):
        if low <= at <= high:
            share = math.log(at / low) / math.log(high / low)
            return low_s * (high_s / low_s) ** share
    raise AssertionError(f"a measured crossover lies between measured sizes, {at} does not")
