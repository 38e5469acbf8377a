"""What a sweep over sizes showed, and what the alpha-beta model makes of it."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from labkit import calc
from labkit.calc.crossing import predicted_crossing
from labkit.comm import Topology
from labkit.measure.algorithms import Algorithm
from labkit.measure.crossing import Crossover, crossover, measured_crossing
from labkit.measure.fit import Fit, equation, fit_alpha_beta, solve

if TYPE_CHECKING:
    from labkit.viz.picture import Picture

ByName = dict[str, dict[int, float]]
"""By algorithm, then by bytes of the tensor."""


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
    """The paced links it was measured on; None: this machine as it is."""

    @cached_property
    def seconds(self) -> ByName:
        """The median call; a call takes as long as its slowest rank."""
        return self._each(lambda name, nbytes: statistics.median(self.samples[name][nbytes]))

    @cached_property
    def algbw(self) -> ByName:
        """Bytes of the tensor per second."""
        return self._each(lambda name, nbytes: calc.algbw(nbytes, self.seconds[name][nbytes]))

    @cached_property
    def busbw(self) -> ByName:
        """algbw times 2(n-1)/n: comparable with the link, at any n."""
        n = self.world_size
        return self._each(lambda name, nbytes: calc.busbw(nbytes, self.seconds[name][nbytes], n))

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """alpha and beta of each algorithm, from its own medians and by its own formula.

        They are effective ones: what the machine does besides sending is in them. ValueError where
        one size was measured.
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

        ValueError for one that was not measured, and where one size was.
        """
        formula, fit = self._named(name).seconds, self.fits[name]
        return lambda nbytes: formula(nbytes, self.world_size, fit.alpha, fit.beta)

    def fit_together(self, *names: str) -> Fit:
        """One alpha and one beta for several algorithms: all of them, if none is named.

        Where the model holds, algorithms differ in how many latencies and bytes they pay, and not
        in what these cost: the residuals show how far that goes. Points in order of the names, then
        of sizes.
        """
        chosen = [self._named(name) for name in names] or self.algorithms
        return solve(
            equation(one.seconds, nbytes, self.world_size, self.seconds[one.name][nbytes])
            for one in chosen
            for nbytes in self.sizes
        )

    def crossover(self, first: str, second: str) -> Crossover | None:
        """Where one of the two stops being the faster, measured and by the model; None: nowhere."""
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
        """Of all pairs that change places within the sizes measured, in order of the algorithms."""
        pairs = combinations([one.name for one in self.algorithms], 2)
        found = (self.crossover(*pair) for pair in pairs)
        return [each for each in found if each is not None and self._is_within(each)]

    def _is_within(self, each: Crossover) -> bool:
        """Beyond the sizes, lines that run side by side meet anywhere."""
        sizes = (each.measured_bytes, each.predicted_bytes)
        return any(at is not None and self.sizes[0] <= at <= self.sizes[-1] for at in sizes)

    def table(self) -> str:
        """Times, bandwidths, fits and crossovers as aligned plain text."""
        from labkit.measure.report import report

        return report(self)

    def draw(self, title: str | None = None) -> "Picture":
        """Time and bus bandwidth over size: points measured, lines by the model."""
        from labkit.measure.drawn import drawn

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
