"""A training step of any layout, simulated: every operation of every class of ranks.

    found = simulate.step(pieces, layout, [Straggler(5, 1.5)])
    found.seconds, found.bubble, found.exposed          and print(found)

Pieces (the seconds of each part) come from the planner, or are measured. A rank runs its pipeline's
order; replicas meet where gradients are reduced. Ranks that behave the same are simulated once
(disturbances.py), so that 100,000 ranks take as long as a few replicas of the pipeline.

Without jitter the times are exactly those of a simulation of all ranks. With jitter they are exact
as long as all replicas are simulated: the largest draw of ranks in step has a known distribution.
Beyond MOST_EVENTS only some replicas are simulated, and the slowest of the others is drawn from a
normal distribution with their mean and deviation, since a replica's time is a sum of many draws.
(With 32 of 256 replicas simulated, jitter then adds 2% less than it should.)
Left out: messages that queue for one link, and senders that wait for their receivers. With zero 2
and 3 the exchanges of all microbatches are put into one, at the step's ends, where the planner lets
them overlap: there a simulated step is up to a third longer than a planned one.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from labkit import arguments
from labkit.calc.layout import Layout
from labkit.calc.pieces import Pieces
from labkit.calc.simulate.disturbances import Behaviour, Behaviours, Disturbance, behaviours
from labkit.calc.simulate.graph import Floors, Graph, Times, check_schedule, graph, replica_times
from labkit.calc.simulate.path import floors, tails
from labkit.calc.simulate.simulated_step import Simulated, SimulatedStep

MOST_EVENTS = 500_000
"""Most operations that are simulated with jitter; further replicas are drawn."""


def step(
    pieces: Pieces,
    layout: Layout,
    disturbances: Iterable[Disturbance] = (),
    *,
    schedule: str | None = None,
    seed: int = 0,
    most_events: int = MOST_EVENTS,
) -> SimulatedStep:
    """Simulate one step of `layout.world_size` ranks.

    schedule: "gpipe", "1f1b" or "interleaved"; None: 1f1b, or interleaved where a rank has several
    stages. seed: of jitter. most_events: with jitter, see above.
    ValueError for pieces of another number of stages than the layout's, for an unknown schedule,
    and for a disturbed rank outside the layout. TypeError for anything but a disturbance.
    """
    _check_given(pieces, layout, disturbances, most_events)
    schedule = schedule or ("interleaved" if layout.virtual > 1 else "1f1b")
    check_schedule(schedule, layout.pp, pieces.num_microbatches, layout.virtual)
    if pieces.num_stages != layout.pp * layout.virtual:
        raise ValueError(
            f"pieces are of {pieces.num_stages} stages, and the layout has pp={layout.pp} * "
            f"virtual={layout.virtual}: give seconds for each of {layout.pp * layout.virtual}"
        )
    disturbances = tuple(disturbances)
    work = graph(schedule, layout.pp, pieces.num_microbatches, layout.virtual)
    found = behaviours(layout, disturbances)
    slowed = found.slowed(pieces)
    allowed = floors(work, slowed, found)
    slowest = _simulated(work, slowed, allowed, found, seed, most_events)
    rng = random.Random(f"{seed} update")
    after = tails(work, slowed, found, slowest.ready_s, slowest.start_s, rng)
    return SimulatedStep(
        pieces=pieces,
        layout=layout,
        disturbances=disturbances,
        schedule=schedule,
        seed=seed,
        num_events=slowest.num_events,
        simulated=Simulated(
            work, slowed, allowed, tuple(slowest.kept), tuple(after), found, slowest.busy_s
        ),
        simulate=step,
    )


def _check_given(pieces: object, layout: object, disturbances: object, most_events: int) -> None:
    if not isinstance(pieces, Pieces):
        raise TypeError(
            f"pieces={pieces!r:.60}: give Pieces(...), or calc.plan.pieces(job, layout)"
        )
    if not isinstance(layout, Layout):
        raise TypeError(f"layout={layout!r:.60}: give a Layout(world_size=64, tp=8)")
    if isinstance(disturbances, Disturbance) or not isinstance(disturbances, Iterable):
        raise TypeError(f"disturbances={disturbances!r:.60}: give a list, [Straggler(5, 1.5)]")
    arguments.counted("most_events", most_events)


@dataclass
class _Slowest:
    """Slowest replica so far, by place, with the times of the replicas that decide it."""

    graph: Graph
    ready_s: list[float]
    start_s: list[float]
    kept: list[Times] = field(default_factory=list)
    busy_s: float = 0.0
    num_events: int = 0

    def add(self, times: Times, keep: bool) -> None:
        """Take a replica into account. keep: also if it is nowhere the slowest."""
        ends = [times.ends[n] for n in self.graph.last]
        starts = [times.starts[n] for n in self.graph.last_backward]
        later = any(a > b for a, b in zip([*ends, *starts], [*self.ready_s, *self.start_s]))
        self.ready_s = [max(pair) for pair in zip(self.ready_s, ends)]
        self.start_s = [max(pair) for pair in zip(self.start_s, starts)]
        self.busy_s += times.count * (sum(times.ends) - sum(times.starts))
        self.num_events += len(times.ends)
        if keep or later:
            self.kept.append(times)
            self._let_go()

    def _let_go(self) -> None:
        """Drop the times of replicas that are no longer the slowest anywhere."""
        first, *others = self.kept
        self.kept = [first, *(each for each in others if self._matters(each))]

    def _matters(self, times: Times) -> bool:
        if times.behaviour != Behaviour():
            return True
        ends, starts = self.graph.last, self.graph.last_backward
        return any(times.ends[n] == at for n, at in zip(ends, self.ready_s)) or any(
            times.starts[n] == at for n, at in zip(starts, self.start_s)
        )


def _simulated(
    work: Graph,
    pieces: Pieces,
    allowed: Floors,
    found: Behaviours,
    seed: int,
    most_events: int,
) -> _Slowest:
    slowest = _Slowest(work, [-1.0] * work.num_cells, [-1.0] * len(work.last_backward))
    common = (work, pieces, allowed, found, seed)
    if not found.jitter:
        undisturbed = found.num_replicas - len(found.of_replica)
        for behaviour, members in found.classes().items():
            count = len(members) if behaviour != Behaviour() else undisturbed
            slowest.add(_times(*common, behaviour, members[0], count), keep=True)
        return slowest
    for replica, behaviour in sorted(found.of_replica.items()):
        slowest.add(_times(*common, behaviour, replica, 1), keep=True)
    same = (n for n in range(found.num_replicas) if n not in found.of_replica)
    num_same = found.num_replicas - len(found.of_replica)
    num_simulated = min(num_same, max(2, most_events // len(work.work)))
    ready: list[list[float]] = []
    starts: list[list[float]] = []
    for replica, _ in zip(same, range(num_simulated)):
        times = _times(*common, Behaviour(), replica, 1)
        slowest.add(times, keep=not ready)
        ready.append([times.ends[n] for n in work.last])
        starts.append([times.starts[n] for n in work.last_backward])
    if num_simulated < num_same:
        rest = num_same - num_simulated
        normal = _largest_normal(rest, random.Random(f"{seed} replicas"))
        slowest.ready_s = _drawn(slowest.ready_s, ready, normal)
        slowest.start_s = _drawn(slowest.start_s, starts, normal)
        slowest.busy_s *= 1 + rest / (num_simulated + len(found.of_replica))
    return slowest


def _times(
    work: Graph,
    pieces: Pieces,
    allowed: Floors,
    found: Behaviours,
    seed: int,
    behaviour: Behaviour,
    replica: int,
    count: int,
) -> Times:
    rng = random.Random(f"{seed} replica {replica}") if found.jitter else None
    per_cell = found.ranks_per_cell
    return replica_times(
        work, pieces, behaviour, allowed, per_cell, found.jitter, rng, replica, count
    )


def _drawn(slowest: list[float], samples: list[list[float]], normal: float) -> list[float]:
    """Return, by place, the later of the slowest simulated replica and the slowest drawn one."""
    columns = list(zip(*samples))
    spread: Callable[[Sequence[float]], float] = statistics.stdev
    return [
        max(found, statistics.fmean(column) + normal * spread(column))
        for found, column in zip(slowest, columns)
    ]


def _largest_normal(count: int, rng: random.Random) -> float:
    """Draw the largest of `count` standard normal numbers."""
    above = -math.expm1(math.log(rng.random() or 0.5) / count)
    return -NormalDist().inv_cdf(max(above, 1e-300))
