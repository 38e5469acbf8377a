"""The longest path of a step, followed from its end back through what each part waited for.

    end <- gather <- optimizer <- reduce <- the last backward of the slowest replica
        <- the work before it, or the message that it waited for and the work that sent it <- ...

Its segments join without a gap, so their seconds add up to the step. Work outside the path has
slack:
it can take a little longer without changing the step.

A Tail follows the pipeline: gradients reduced over dp, the update, parameters gathered.

    last backwards      |B|B|                 reduce_s = overlap + the rest
    reduce, overlapped      |=background=|    begins with the last backward of a stage on the
                                              slowest replica; stages follow each other
    reduce, the rest                   |==|   begins when the slowest replica's cell has finished
    optimizer                              |=|
    gather, the rest                         |==|     its overlap is in the next step's forwards

The share (1 - overlap) of a collective is never hidden. The other part is hidden as far as there is
computing beside it. Steps are alike, so the overlapped gather of the step before is in this one's
forwards: the first forward of a stage does not end before it. Exchanges of zero 2 and 3 in every
microbatch are part of the forwards and backwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labkit.calc.pieces import Pieces
from labkit.calc.simulate.disturbances import Behaviours, Collective
from labkit.calc.simulate.graph import Floors, Graph, Times, computing, slowest_of


class Tail(NamedTuple):
    """The times of a stage's slowest collective over dp; each begins where the one before ends.

    cell: rank of the pipeline. lane: the stage whose last backward starts the overlapped part of
    the reduce, which goes on from there without a pause; -1: nothing overlaps.
    """

    cell: int
    lane: int
    ready_s: float
    begins_s: float
    reduced_s: float
    updated_s: float
    gathered_s: float


def floors(graph: Graph, pieces: Pieces, found: Behaviours) -> Floors:
    """Return the earliest ends of first forwards, while parameters are gathered."""
    ends = {}
    for cell in range(graph.num_cells):
        link = max([1.0, *(c.link for (pp, _), c in found.collectives.items() if pp == cell)])
        lane = 0.0
        for stage in graph.stages_of(cell):
            lane += pieces.overlap * pieces.gather_s[stage] * link
            if lane > 0:
                ends[graph.first_forward[stage]] = lane
    return ends


def tails(
    graph: Graph,
    pieces: Pieces,
    found: Behaviours,
    ready_s: Sequence[float],
    start_s: Sequence[float],
    rng: random.Random,
) -> list[Tail]:
    """Return the collective that ends last, by cell.

    ready_s: by cell, when the slowest replica has finished the pipeline. start_s: by stage, when
    the slowest replica starts its last backward.
    """
    result = []
    for cell in range(graph.num_cells):
        touched = [each for (pp, _), each in found.collectives.items() if pp == cell]
        rest = found.layout.tp - len(touched)
        groups = [(each, 1) for each in touched] + [(Collective(), rest)] * (rest > 0)
        ends = [
            _tail(graph, pieces, found, cell, ready_s[cell], start_s, each, count, rng)
            for each, count in groups
        ]
        result.append(max(ends, key=lambda tail: tail.gathered_s))
    return result


def _tail(
    graph: Graph,
    pieces: Pieces,
    found: Behaviours,
    cell: int,
    ready_s: float,
    start_s: Sequence[float],
    collective: Collective,
    count: int,
    rng: random.Random,
) -> Tail:
    """Seconds of one collective, or of the slowest of `count` equal ones."""
    stages, exposed = graph.stages_of(cell), 1 - pieces.overlap
    lane, since = 0.0, -1
    for stage in sorted(stages, key=lambda each: graph.last_backward[each]):
        if hidden := pieces.overlap * pieces.reduce_s[stage] * collective.link:
            if start_s[stage] > lane or since < 0:
                lane, since = start_s[stage], stage
            lane += hidden
    begins = max(ready_s, lane)
    reduced = begins + exposed * sum(pieces.reduce_s[s] for s in stages) * collective.link
    updated = reduced + pieces.optimizer_s * _slowest(found, collective, count, rng)
    gather = sum(pieces.gather_s[stage] for stage in stages) * collective.link
    return Tail(cell, since, ready_s, begins, reduced, updated, updated + exposed * gather)


def _slowest(found: Behaviours, collective: Collective, count: int, rng: random.Random) -> float:
    """Return the factor of the slowest rank's update."""
    slower = list(collective.slower.values())
    ranks = found.layout.dp * found.layout.cp * count - len(slower)
    factors = [(factor, 1) for factor in slower] + [(1.0, ranks)] * (ranks > 0)
    if found.jitter:
        return slowest_of(tuple(factors), found.jitter, rng)
    return max(factor for factor, _ in factors)


class Segment(NamedTuple):
    """A part of the longest path. cell, replica: its place; replica -1: all replicas."""

    what: str
    cell: int
    replica: int
    start_s: float
    end_s: float


def longest_path(
    graph: Graph, pieces: Pieces, allowed: Floors, kept: Sequence[Times], tails: Sequence[Tail]
) -> list[Segment]:
    """Return the segments of the longest path, first to last."""
    tail = max(tails, key=lambda each: each.gathered_s)
    backwards = [
        Segment("dp", tail.cell, -1, tail.updated_s, tail.gathered_s),
        Segment("optimizer", tail.cell, -1, tail.reduced_s, tail.updated_s),
        Segment("dp", tail.cell, -1, tail.begins_s, tail.reduced_s),
    ]
    if tail.begins_s > tail.ready_s:  # the overlapped part of the reduce has not finished
        n = graph.last_backward[tail.lane]
        times = max(kept, key=lambda each: each.starts[n])
        backwards.append(Segment("dp", tail.cell, -1, times.starts[n], tail.begins_s))
        backwards += _before(graph, times, n)
        n = _cause(graph, times, n)
    else:
        n = graph.last[tail.cell]
        times = max(kept, key=lambda each: each.ends[n])
        backwards.append(Segment("other replicas", tail.cell, -1, times.ends[n], tail.ready_s))
    while n >= 0:
        if allowed.get(n) == times.ends[n]:  # it ends when its parameters have come
            backwards.append(Segment("dp", graph.cell[n], times.replica, 0.0, times.ends[n]))
            break
        backwards += _operation(graph, pieces, times, n)
        backwards += _before(graph, times, n)
        n = _cause(graph, times, n)
    return [each for each in reversed(backwards) if each.end_s > each.start_s]


def _cause(graph: Graph, times: Times, n: int) -> int:
    """Return the work whose end or message work n waited for, or -1."""
    before, need = graph.before[n], graph.need[n]
    free = times.ends[before] if before >= 0 else 0.0
    return before if need < 0 or free >= times.starts[n] else need


def _before(graph: Graph, times: Times, n: int) -> Iterator[Segment]:
    """Return the message, or the gathering of parameters, that ended when work n began."""
    cause, start = _cause(graph, times, n), times.starts[n]
    since = times.ends[cause] if cause >= 0 else 0.0
    if start > since:
        what = "pp" if cause >= 0 and cause == graph.need[n] else "dp"
        yield Segment(what, graph.cell[n], times.replica, since, start)


def _operation(graph: Graph, pieces: Pieces, times: Times, n: int) -> Iterator[Segment]:
    """Return an operation's segments, last to first: computing, then the collectives inside."""
    kind, stage, _ = graph.work[n]
    inside, alone = computing(pieces)[kind, stage]
    start, end = times.starts[n], times.ends[n]
    where = (graph.cell[n], times.replica)
    yield Segment("computing", *where, start + inside, end)
    yield Segment("tp, cp, ep", *where, start, min(start + inside, end))
