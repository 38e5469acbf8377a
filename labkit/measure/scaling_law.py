"""Strong and weak scaling of a training step, and the laws of Amdahl and Gustafson.

    measured = labkit.measure.scaling()          # a timed step on 1, 2 and 4 ranks
    print(measured.table())
    measured.amdahl.serial_share, measured.gustafson

    strong: the same batch, divided among the ranks        weak: a batch of the same size on each
       1 rank   |==== batch ====|u|                           |==== batch ====|u|
       2 ranks  |== b ==|comm|u|                              |==== batch ====|comm|u|
       4 ranks  |= b |comm |u|                                |==== batch ====|comm |u|

The update u takes the same time on any number of ranks: it is serial work. Amdahl's law is its
cost:
T(n) = T(1) (s + (1 - s) / n), at most 1/s times as fast. Gustafson's law is why many ranks are
useful all the same: with n times the work, the scaled speedup is n - s (n - 1). Neither includes
communication, which grows with n; the run's profile separates it from serial work.

Amdahl, "Validity of the single processor approach", AFIPS 1967; Gustafson, "Reevaluating Amdahl's
law", CACM 31(5), 1988.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from labkit.calc.units import seconds_text
from labkit.collectives import ring_all_reduce
from labkit.comm import Group, Link, Timeline, Topology
from labkit.data_parallel import BucketedDDP
from labkit.inject.slow import compute
from labkit.inject.timed_training import WIDTH, Wait
from labkit.launch import launch
from labkit.measure.alpha_beta_fit import Equation, solve
from labkit.measure.measured import aligned
from labkit.profile import Terms, breakdown, trace_of_run
from labkit.profile.breakdown import BUBBLE, STRAGGLER, TRANSFER

if TYPE_CHECKING:
    from labkit.viz.picture import Picture

Step = Callable[[], object]
MakeStep = Callable[[Group, int], Step]
"""make_step(world, rows) runs on each rank, and returns a function that trains on `rows`
examples."""

ROW_S, SERIAL_S = 0.01, 0.02
"""Seconds of the default step: an example in the layers, forward and backward; the update."""
LAYERS, UPDATE = "forward and backward", "update"
LINK = Link(8e6, 200e-6)


def timed_step(world: Group, rows: int) -> Step:
    """Make a step of data parallelism whose layers wait: forward, backward, all-reduce, update.

    A rank that waits needs no core, so that the times of 4 ranks are right on 2 cores.
    """
    layers = (nn.Linear(WIDTH, WIDTH) for _ in range(5))
    stack = nn.Sequential(*layers, Wait(ROW_S / 3))  # backward takes twice that
    model, batch = BucketedDDP(stack, world, ring_all_reduce), torch.zeros(rows, WIDTH)

    def step() -> None:
        with world.region(LAYERS):
            model(batch).sum().backward()
        model.reduce_gradients()
        with world.region(UPDATE):
            compute(SERIAL_S)

    return step


class Point(NamedTuple):
    """The fastest of some steps."""

    seconds: float
    """Seconds of its slowest rank."""
    communication_s: float
    """Seconds of it in which the rank waited for messages or for another rank."""


class Amdahl(NamedTuple):
    """T(n) = serial_s + parallel_s / n."""

    serial_s: float
    parallel_s: float

    def seconds(self, n: float) -> float:
        """Return the seconds of a step on n ranks."""
        return self.serial_s + self.parallel_s / n

    @property
    def serial_share(self) -> float:
        """The part of one rank's step that more ranks do not make faster, 0 to 1."""
        return self.serial_s / self.seconds(1)


@dataclass(frozen=True)
class Scaling:
    """Times of steps by number of ranks, and the laws fitted to them."""

    batch: int
    """Examples in all for strong scaling, on each rank for weak scaling."""
    strong: dict[int, Point]
    weak: dict[int, Point]

    def strong_efficiency(self, n: int) -> float:
        """Return T(1) / (n T(n)): the useful share of n ranks' time."""
        return self.strong[1].seconds / (n * self.strong[n].seconds)

    def weak_efficiency(self, n: int) -> float:
        """Return T(1) / T(n), with n times the work."""
        return self.weak[1].seconds / self.weak[n].seconds

    @cached_property
    def amdahl(self) -> Amdahl:
        """Amdahl's law through the strong times without communication: serial means serial work."""
        return self._law(lambda point: point.seconds - point.communication_s)

    @cached_property
    def amdahl_of_all(self) -> Amdahl:
        """Amdahl's law through the whole strong times: communication counts as serial work."""
        return self._law(lambda point: point.seconds)

    def _law(self, of: Callable[[Point], float]) -> Amdahl:
        fit = solve(Equation(1, 1 / n, of(point)) for n, point in self.strong.items())
        return Amdahl(fit.alpha, fit.beta)

    def scaled_speedup(self, n: int) -> float:
        """Return how many times longer one rank would take for the work of n, by Amdahl's law."""
        return (self.amdahl.serial_s + n * self.amdahl.parallel_s) / self.weak[n].seconds

    @property
    def gustafson(self) -> float:
        """s of n - s (n - 1), by least squares through the scaled speedups; 0: all work is
        parallel."""
        more = [n for n in self.weak if n > 1]
        missing = sum((n - self.scaled_speedup(n)) * (n - 1) for n in more)
        return missing / sum((n - 1) ** 2 for n in more)

    def table(self) -> str:
        """Write both scalings and the laws as aligned plain text."""
        return "\n\n".join((self._strong_table(), self._weak_table(), self._laws()))

    def _strong_table(self) -> str:
        rows = [["ranks", "step", "speedup", "efficiency", "communication"]]
        for n, (seconds, communication_s) in self.strong.items():
            times, share = self.strong[1].seconds / seconds, self.strong_efficiency(n)
            rows.append(_row(n, seconds, times, share, communication_s))
        return f"strong scaling: {self.batch} examples in all\n{aligned(rows, left=0)}"

    def _weak_table(self) -> str:
        rows = [["ranks", "step", "throughput", "efficiency", "communication"]]
        for n, (seconds, communication_s) in self.weak.items():
            share = self.weak_efficiency(n)
            times = n * share
            rows.append(_row(n, seconds, times, share, communication_s))
        return f"weak scaling: {self.batch} examples on each rank\n{aligned(rows, left=0)}"

    def _laws(self) -> str:
        n, point = max(self.strong.items())
        lost_s = point.seconds - self.strong[1].seconds / n
        laws = [("communication left out", self.amdahl), ("with it", self.amdahl_of_all)]
        return "\n".join(
            [
                f"At {n} ranks a strong step lost {seconds_text(max(lost_s, 0))} to the ideal, of "
                f"which communication is {seconds_text(point.communication_s)}.",
                *(f"Amdahl, {which}: {_limit(law)}." for which, law in laws),
                f"Gustafson: scaled speedup n - {max(self.gustafson, 0):.2f} (n - 1).",
            ]
        )

    def draw(self, title: str | None = None) -> Picture:
        """Draw the speedup over ranks with Amdahl's law, and the parts of the steps."""
        from labkit.viz.performance import scaling_curves  # viz loads matplotlib

        return scaling_curves(self.strong, self.weak, self.amdahl_of_all.seconds, title=title)

    def show(self) -> None:
        """Show the picture: in the notebook, or, outside of one, as a file."""
        self.draw().show()


def scaling(
    make_step: MakeStep = timed_step,
    ranks: Sequence[int] = (1, 2, 4),
    *,
    batch: int = 16,
    num_steps: int = 3,
    link: Link | None = LINK,
    timeout: float = 60,
) -> Scaling:
    """Time a training step on ever more ranks, of the same batch and of the same batch per rank.

    make_step(world, rows) -> step: the model on this rank, and a function that trains it on `rows`
    examples. ranks: from 1 up; each divides `batch`. num_steps: steps of which the fastest counts.
    link: of each rank (labkit.collectives are throttled to it, the backend's collectives are not);
    None: as the machine is.

    On 2 cores, 4 computing ranks do not run at once, and would scale to 2 with any step. So the
    default step waits instead. Give a step that computes if there is a core for each rank.

    Raises ValueError or TypeError for arguments that cannot be measured, and what labkit.run
    raises.
    """
    found = sorted(set(ranks))
    wrong = [n for n in found if batch % n]
    if len(found) < 2 or found[0] != 1 or wrong:
        raise ValueError(
            f"ranks={ranks!r}: scaling compares with 1 rank, so give 1 and at least one more; all "
            f"divide batch={batch}"
        )
    strong, weak = {}, {}
    for n in found:
        topology = Topology(hosts=1, ranks_per_host=n, fast=link) if link else None
        args = (make_step, (batch // n, batch), num_steps)
        run = launch(_steps_on_rank, n, [args], timeout=timeout, echo=False, topology=topology)
        strong[n], weak[n] = _points(run.timeline, num_steps)
    return Scaling(batch, strong, weak)


def _points(timelines: Sequence[Timeline], num_steps: int) -> tuple[Point, Point]:
    """Return the strong and weak points, from the timelines of `_steps_on_rank`."""
    steps = list(zip(*breakdown(trace_of_run(timelines)).values(), strict=True))
    return _point(steps[:num_steps]), _point(steps[num_steps:])


def _steps_on_rank(world: Group, make_step: MakeStep, sizes: Sequence[int], num: int) -> None:
    for rows in sizes:
        step = make_step(world, rows)
        step()  # warms up
        for _ in range(num):
            world.barrier()
            with world.region("step"):
                step()


def _point(steps: Sequence[Sequence[Terms]]) -> Point:
    """Return the point of the fastest step by Terms by step and rank: other load only adds
    seconds."""
    slowest = [max(by_rank, key=lambda terms: terms.total) for by_rank in steps]
    best = min(slowest, key=lambda terms: terms.total)
    waited_s = sum(best.seconds[term] for term in (TRANSFER, STRAGGLER, BUBBLE))
    return Point(best.total, waited_s)


def _row(n: int, seconds: float, times: float, share: float, communication_s: float) -> list[str]:
    communication = f"{seconds_text(communication_s)} ({communication_s / seconds:.0%})"
    return [str(n), seconds_text(seconds), f"{times:.2f} x", f"{share:.0%}", communication]


def _limit(law: Amdahl) -> str:
    if law.serial_share < 1e-3:
        return "no serial share"
    return f"serial share {law.serial_share:.1%}, at most {1 / law.serial_share:.3g} x"
