"""The longest path of a step: from its end back, always to what it had to wait for.

    end <- gather <- optimizer <- reduce <- the last backward of the slowest replica
        <- the work before it, or the message that it waited for and the work that sent it <- ...

Its segments join without a gap, so their seconds add up to those of the step. What is not on it
may take longer, and the step would be no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labkit.calc.pieces import Pieces
from labkit.calc.simulate.gradient_exchange import Tail
from labkit.calc.simulate.graph import Graph
from labkit.calc.simulate.replica import Floors, Times, computing


class Segment(NamedTuple):
    """A part of the longest path. cell, replica: where; replica -1: of all."""

    what: str
    cell: int
    replica: int
    start_s: float
    end_s: float


def longest_path(
    graph: Graph, pieces: Pieces, allowed: Floors, kept: Sequence[Times], tails: Sequence[Tail]
) -> list[Segment]:
    """First to last."""
    tail = max(tails, key=lambda each: each.gathered_s)
    backwards = [
        Segment("dp", tail.cell, -1, tail.updated_s, tail.gathered_s),
        Segment("optimizer", tail.cell, -1, tail.reduced_s, tail.updated_s),
        Segment("dp", tail.cell, -1, tail.begins_s, tail.reduced_s),
    ]
    if tail.begins_s > tail.ready_s:  # the overlapped part of the reduce is not through
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
    """The work whose end (and message) work n had to wait for; -1: none."""
    before, need = graph.before[n], graph.need[n]
    free = times.ends[before] if before >= 0 else 0.0
    return before if need < 0 or free >= times.starts[n] else need


def _before(graph: Graph, times: Times, n: int) -> Iterator[Segment]:
    """The message, or the gathering of parameters, that ended when work n began."""
    cause, start = _cause(graph, times, n), times.starts[n]
    since = times.ends[cause] if cause >= 0 else 0.0
    if start > since:
        what = "pp" if cause >= 0 and cause == graph.need[n] else "dp"
        yield Segment(what, graph.cell[n], times.replica, since, start)


def _operation(graph: Graph, pieces: Pieces, times: Times, n: int) -> Iterator[Segment]:
    """Last to first: computing, then the collectives inside."""
    kind, stage, _ = graph.work[n]
    inside, alone = computing(pieces)[kind, stage]
    start, end = times.starts[n], times.ends[n]
    where = (graph.cell[n], times.replica)
    yield Segment("computing", *where, start + inside, end)
    yield Segment("tp, cp, ep", *where, start, min(start + inside, end))
