"""Result of a simulated step: seconds, spans by class of ranks, the bubble, the longest path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from labkit.calc.layout import Layout
from labkit.calc.pieces import Pieces
from labkit.calc.simulate.disturbances import (
    Behaviours,
    Disturbance,
    Jitter,
    SlowLink,
    SlowNode,
    Straggler,
)
from labkit.calc.simulate.graph import Floors, Graph, Times
from labkit.calc.simulate.path import Segment, Tail, longest_path
from labkit.calc.units import seconds_text

COMMUNICATION = ("tp, cp, ep", "pp", "dp")
_MOST_TRIED = 16


class StepSpan(NamedTuple):
    """A span of a step. kind: "F", "B", "reduce", "optimizer" or "gather" (the last three: -1,
    -1)."""

    kind: str
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankClass:
    """Ranks of one stage that do the same at the same time.

    rank: the first of them. num_ranks: their number. is_disturbed: unlike most classes.
    """

    name: str
    rank: int
    num_ranks: int
    replica: int
    pp: int
    is_disturbed: bool
    spans: tuple[StepSpan, ...]


@dataclass(frozen=True)
class Simulated:
    """The simulation itself, from which a SimulatedStep takes its numbers."""

    graph: Graph
    pieces: Pieces
    """Seconds of the step's parts, with slow links in every microbatch."""
    floors: Floors
    kept: tuple[Times, ...]
    tails: tuple[Tail, ...]
    behaviours: Behaviours
    busy_s: float
    """Busy seconds of all cells together, in the pipeline."""


@dataclass(frozen=True)
class SimulatedStep:
    """A simulated step. Print it to read what it waits for."""

    pieces: Pieces
    layout: Layout
    disturbances: tuple[Disturbance, ...]
    schedule: str
    seed: int
    num_events: int
    """Operations that were simulated, those of one replica of each class."""
    simulated: Simulated
    simulate: Callable[..., SimulatedStep] = field(repr=False, compare=False)
    """`simulate.step` with this step's arguments; other disturbances give the cost of each."""

    @cached_property
    def seconds(self) -> float:
        """Seconds from the first forward to the end of the last rank's update."""
        return max(tail.gathered_s for tail in self.simulated.tails)

    @cached_property
    def pipeline_seconds(self) -> float:
        """Seconds from the first forward to the end of the last backward."""
        return max(tail.ready_s for tail in self.simulated.tails)

    @cached_property
    def bubble(self) -> float:
        """Idle time of all ranks in the pipeline, as a share of all their time in it.

        Like labkit.pipeline's Timing.bubble(), relative to the total. Waiting for messages, for a
        straggler's stage and for the slowest replica is idle time. Waiting for others inside an
        operation is not.
        """
        cells = self.simulated.behaviours.num_replicas * self.layout.pp
        whole = cells * self.pipeline_seconds
        return 1 - self.simulated.busy_s / whole if whole else 0.0

    @cached_property
    def longest_path(self) -> tuple[Segment, ...]:
        """The chain of work that decides the step's time, first to last, without a gap: see
        Segment."""
        made = self.simulated
        return tuple(longest_path(made.graph, made.pieces, made.floors, made.kept, made.tails))

    @cached_property
    def on_the_path(self) -> dict[str, float]:
        """Seconds of the longest path by kind; they add up to the step.

        "computing", "optimizer", exposed communication by axis ("tp, cp, ep", "pp", "dp"), and
        "other replicas": with jitter, waiting for replicas that were drawn and not simulated.
        """
        found = dict.fromkeys(("computing", *COMMUNICATION, "optimizer", "other replicas"), 0.0)
        for each in self.longest_path:
            found[each.what] += each.end_s - each.start_s
        return found

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds of communication that the step waits for, by axis: those of the longest path."""
        return {axis: self.on_the_path[axis] for axis in COMMUNICATION}

    @cached_property
    def classes(self) -> tuple[RankClass, ...]:
        """Classes by replica and stage; with jitter, of the replicas that decide the step."""
        return tuple(self._classes())

    def _classes(self) -> Iterator[RankClass]:
        made, layout = self.simulated, self.layout
        for times in made.kept:
            dp = times.replica * layout.joined_replicas
            first = dp * layout.stride("dp")
            for pp in range(layout.pp):
                more = times.count * layout.joined_replicas - 1
                name = f"dp {dp}" + (f" and {more} more" if more else "")
                yield RankClass(
                    f"{name}, pp {pp}" if layout.pp > 1 else name,
                    first + pp * layout.stride("pp"),
                    times.count * made.behaviours.ranks_per_cell,
                    times.replica,
                    pp,
                    _is_unlike_others(times, pp),
                    tuple(_spans(made, times, pp)),
                )

    @property
    def words(self) -> tuple[str, str, str]:
        """Say how long the step takes, what its longest path consists of, and whom all wait for."""
        shares = {name: seconds / self.seconds for name, seconds in self.on_the_path.items()}
        listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share > 5e-4)
        return (
            f"{self.layout}: {seconds_text(self.seconds)}, bubble {self.bubble:.1%}",
            f"on the longest path: {listed}",
            waits_for(self),
        )

    def __str__(self) -> str:
        """The step in a few sentences."""
        takes, path, waits = self.words
        return f"{self.layout.world_size:,} ranks, {self.schedule}, {takes}; {path}. {waits}"


def _is_unlike_others(times: Times, cell: int) -> bool:
    slow_links = any(cell in pair for pair, _ in times.behaviour.links)
    return slow_links or any(cell == each for each, _ in times.behaviour.slower)


def _spans(made: Simulated, times: Times, cell: int) -> Iterator[StepSpan]:
    for n, of_cell in enumerate(made.graph.cell):
        if of_cell == cell:
            yield StepSpan(*made.graph.work[n], times.starts[n], times.ends[n])
    tail = made.tails[cell]
    edges = (tail.begins_s, tail.reduced_s, tail.updated_s, tail.gathered_s)
    for kind, start, end in zip(("reduce", "optimizer", "gather"), edges, edges[1:]):
        if end > start:
            yield StepSpan(kind, -1, -1, start, end)


class Cost(NamedTuple):
    """A disturbance and the share of the step that would be gone without it."""

    disturbance: Disturbance
    share: float


def costs(step: SimulatedStep) -> tuple[Cost, ...]:
    """Return the cost of each disturbance, the highest first.

    Of more than 16 disturbances, only those with the 16 largest factors are tried.
    """
    tried = sorted(step.disturbances, key=_size, reverse=True)[:_MOST_TRIED]
    found = []
    for each in tried:
        others = list(step.disturbances)
        others.remove(each)
        found.append(Cost(each, 1 - _seconds(step, others) / step.seconds))
    return tuple(sorted(found, key=lambda cost: cost.share, reverse=True))


def waits_for(step: SimulatedStep) -> str:
    """Say in one sentence what costs most: the gain of a step without one disturbance.

        Rank 5 (pp 1, dp 0, cp 0, tp 1), slower by 1.5, costs 12% of the step.

    A second simulation without the disturbance gives the gain. The longest path alone does not: it
    shows who was waited for, but not how soon the next slowest rank would have finished.
    """
    if not step.disturbances:
        return "No rank is slower than others of its stage."
    worst, *others = costs(step)
    text = f"{_description(step, worst.disturbance)} costs {worst.share:.0%} of the step."
    if others:
        together = 1 - _seconds(step, []) / step.seconds
        text = f"{text[:-1]}, all {len(step.disturbances)} disturbances together {together:.0%}."
    return text


def _seconds(step: SimulatedStep, disturbances: list[Disturbance]) -> float:
    return step.simulate(
        step.pieces, step.layout, disturbances, schedule=step.schedule, seed=step.seed
    ).seconds


def _size(disturbance: Disturbance) -> float:
    return disturbance.share if isinstance(disturbance, Jitter) else disturbance.factor


def _description(step: SimulatedStep, disturbance: Disturbance) -> str:
    if isinstance(disturbance, Jitter):
        return f"Jitter of {disturbance.share:.1%}"
    if isinstance(disturbance, Straggler):
        at = step.layout.coordinates(disturbance.rank)
        where = ", ".join(f"{axis} {place}" for axis, place in at.items() if _has(step, axis))
        return f"Rank {disturbance.rank} ({where or 'alone'}), slower by {disturbance.factor:g},"
    if isinstance(disturbance, SlowLink):
        a, b = disturbance.ranks
        return f"The link between ranks {a} and {b}, slower by {disturbance.factor:g},"
    assert isinstance(disturbance, SlowNode)
    first, last = min(disturbance.ranks), max(disturbance.ranks)
    ranks = f"ranks {first} to {last}" if last > first else f"rank {first}"
    return f"The node of {ranks}, its links slower by {disturbance.factor:g},"


def _has(step: SimulatedStep, axis: str) -> bool:
    return step.layout.sizes[axis] > 1
