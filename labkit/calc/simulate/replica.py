"""One replica's way through the pipeline: when each piece of its work begins and ends.

    begins = the later of: its cell is free; the message that it needs has come
    ends   = begins + collectives inside it + the slowest rank's computing

A message comes send_s after the work that yields it has ended, and keeps nobody busy meanwhile.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from labkit.calc.pieces import Pieces
from labkit.calc.simulate.behaviour import Behaviour, Factors
from labkit.calc.simulate.graph import Graph


@dataclass(frozen=True)
class Times:
    """Of a replica's work, in the order of the graph, seconds from the start of the step."""

    starts: list[float]
    ends: list[float]
    behaviour: Behaviour
    replica: int
    """Its number; where it stands for several, the first of them."""
    count: int
    """How many replicas it stands for."""


Floors = dict[int, float]
"""By place in the graph: a first forward, beside which parameters are gathered, ends no earlier."""


def replica_times(
    graph: Graph,
    pieces: Pieces,
    behaviour: Behaviour,
    floors: Floors,
    ranks_per_cell: int,
    jitter: float = 0.0,
    rng: random.Random | None = None,
    replica: int = 0,
    count: int = 1,
) -> Times:
    """Of a replica with such a behaviour. rng: for jitter, a state of its own."""
    seconds = _seconds(graph, pieces, behaviour, ranks_per_cell, jitter, rng)
    factors = dict(behaviour.links)
    sends = [pieces.send_s * factors.get(pair, 1.0) for pair in graph.pairs]
    sends.append(0.0)  # entry -1: within a cell
    free = [0.0] * graph.num_cells
    starts, ends = [0.0] * len(seconds), [0.0] * len(seconds)
    for n, (cell, need, pair) in enumerate(zip(graph.cell, graph.need, graph.pair)):
        start = free[cell]
        if need >= 0:
            arrived = ends[need] + sends[pair]
            if arrived > start:
                start = arrived
        starts[n] = start
        end = start + seconds[n]
        if n in floors:
            end = max(end, floors[n])
        ends[n] = free[cell] = end
    return Times(starts, ends, behaviour, replica, count)


def computing(pieces: Pieces) -> dict[tuple[str, int], tuple[float, float]]:
    """(kind, stage) -> (collectives inside an operation, computing), seconds."""
    found = {}
    for stage, (forward, backward) in enumerate(zip(pieces.forward_s, pieces.backward_s)):
        whole = forward + backward
        share = min(pieces.compute_s[stage] / whole, 1.0) if pieces.compute_s and whole else 1.0
        found["F", stage] = (forward * (1 - share), forward * share)
        found["B", stage] = (backward * (1 - share), backward * share)
    return found


def _seconds(
    graph: Graph,
    pieces: Pieces,
    behaviour: Behaviour,
    ranks_per_cell: int,
    jitter: float,
    rng: random.Random | None,
) -> list[float]:
    """By place in the graph: how long each piece of work takes its cell."""
    parts = computing(pieces)
    of_cell = dict(behaviour.slower)
    same: Factors = ((1.0, ranks_per_cell),)
    if not jitter:
        slowest = [max(of_cell.get(cell, same))[0] for cell in range(graph.num_cells)]
        table = {
            key: inside + slowest[key[1] % graph.num_cells] * alone
            for key, (inside, alone) in parts.items()
        }
        return [table[kind, stage] for kind, stage, _ in graph.work]
    assert rng is not None, "jitter is drawn"
    found = []
    for (kind, stage, _), cell in zip(graph.work, graph.cell):
        inside, alone = parts[kind, stage]
        found.append(inside + alone * slowest_of(of_cell.get(cell, same), jitter, rng))
    return found


def slowest_of(factors: Factors, jitter: float, rng: random.Random) -> float:
    """A draw of max over ranks of factor * (1 + jitter * X), X exponential; exact for any number.

    The largest of n has the distribution (1 - e^-x)^n, which one uniform number inverts.
    """
    return max(
        factor * (1.0 + jitter * largest_exponential(count, rng)) for factor, count in factors
    )


def largest_exponential(count: int, rng: random.Random) -> float:
    """The largest of so many exponential numbers of mean 1, in one draw."""
    uniform = rng.random() or 0.5  # 0 itself, one draw of 2**53, has no logarithm
    return -math.log(-math.expm1(math.log(uniform) / count))
