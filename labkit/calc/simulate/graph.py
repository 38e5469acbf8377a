"""A pipeline's step as a graph of work in an order that can be run, and a replica's times.

    F of stage s, microbatch i     waits for    the work before it on its rank
                                                F of stage s - 1, i: a message
    B of stage s, i                waits for    the work before it on its rank
                                                B of stage s + 1, i: a message; the last stage: none

Each rank of a pipeline does some forwards ahead, then one forward and one backward in turn, then
the remaining work:

    schedule      ahead, on rank r of p               a rank's microbatches
    gpipe         all                                 one after the other
    1f1b          p - r - 1                           one after the other
    interleaved   2 (p - r - 1) + (v - 1) p           p through its first stage, the same p through
                                                      its second, ...; stage s is on rank s mod p

This is written from the papers. Tests compare the strategies' own schedules with it.

The same graph serves all replicas of a layout; only their seconds differ (`replica_times`):

    begins = the later of: its cell is free; the message that it needs has come
    ends   = begins + collectives inside it + the slowest rank's computing

A message comes send_s after the work that yields it has ended, and keeps no rank busy meanwhile.

Papers: Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2006.09503 (1F1B with a
flush) and arXiv:2104.04473, section 2.2 (interleaved).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from labkit import arguments
from labkit.calc.pieces import Pieces
from labkit.calc.simulate.disturbances import Behaviour, Factors

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Work(NamedTuple):
    """A forward "F" or a whole backward "B" of one microbatch on one stage, counted from 0."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """`F3`: the stage is left out, as in pictures."""
        return f"{self.kind}{self.microbatch}"


def order(
    schedule: str, rank: int, num_ranks: int, num_microbatches: int, virtual: int = 1
) -> tuple[Work, ...]:
    """Return all work of one rank of a pipeline in a step, first to last.

    ValueError: another schedule, several stages on a rank without interleaving, or an interleaved
    schedule whose microbatches do not come in rounds of `num_ranks`.
    """
    check_schedule(schedule, num_ranks, num_microbatches, virtual)
    arguments.rank("rank", rank, num_ranks)
    forwards = list(_walk("F", rank, num_ranks, num_microbatches, virtual))
    backwards = _walk("B", rank, num_ranks, num_microbatches, virtual)
    ahead = _ahead(schedule, rank, num_ranks, virtual, len(forwards))
    work = forwards[:ahead]
    for n, backward in enumerate(backwards, start=ahead):
        work += [*forwards[n : n + 1], backward]
    return tuple(work)


def check_schedule(schedule: str, num_ranks: int, num_microbatches: int, virtual: int) -> None:
    """Raise ValueError for a schedule that does not exist, see `order`."""
    p, m = (
        arguments.counted("num_ranks", num_ranks),
        arguments.counted("num_microbatches", num_microbatches),
    )
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r:.60}: give one of {', '.join(SCHEDULES)}")
    if arguments.counted("virtual", virtual) > 1 and schedule != "interleaved":
        raise ValueError(
            f"virtual={virtual} stages on each rank make schedule='interleaved', not {schedule!r}"
        )
    if virtual > 1 and m % p:
        raise ValueError(
            f"num_microbatches={m} is no multiple of the {p} ranks of the pipeline, and an "
            f"interleaved schedule goes in rounds of {p}; try {max(p, m - m % p)}"
        )


def _walk(kind: str, rank: int, p: int, m: int, virtual: int) -> Iterator[Work]:
    """Return one direction's work: backward comes from a rank's last stage."""
    if virtual == 1:
        yield from (Work(kind, rank, microbatch) for microbatch in range(m))
        return
    turns = range(virtual) if kind == "F" else range(virtual - 1, -1, -1)
    for first in range(0, m, p):
        for turn in turns:
            for microbatch in range(first, first + p):
                yield Work(kind, turn * p + rank, microbatch)


def _ahead(schedule: str, rank: int, p: int, virtual: int, total: int) -> int:
    if schedule == "gpipe":
        return total
    distance = p - rank - 1
    return min(distance if virtual == 1 else 2 * distance + (virtual - 1) * p, total)


@dataclass(frozen=True)
class Graph:
    """A step's work in an order that can be run. Entry n of a tuple is about the n-th work.

    A rank of the pipeline is called a cell here: with tp, cp and ep it stands for several ranks.
    """

    num_cells: int
    work: tuple[Work, ...]
    cell: tuple[int, ...]
    before: tuple[int, ...]
    """The work before it in its cell; -1: none."""
    need: tuple[int, ...]
    """The work in another cell (or another stage of its own) whose product it takes; -1: none."""
    pair: tuple[int, ...]
    """Index in `pairs` of the two cells that the product travels between; -1: it does not
    travel."""
    pairs: tuple[tuple[int, int], ...]
    """Neighbouring cells, the lower first."""
    last: tuple[int, ...]
    """By cell: its last work."""
    first_forward: tuple[int, ...]
    """By stage."""
    last_backward: tuple[int, ...]
    """By stage."""

    def stages_of(self, cell: int) -> range:
        """Return the stages that a cell holds."""
        return range(cell, len(self.first_forward), self.num_cells)


@lru_cache(maxsize=8)
def graph(schedule: str, num_cells: int, num_microbatches: int, virtual: int = 1) -> Graph:
    """Return the graph of a schedule. ValueError for one that does not exist, see `order`."""
    rows = [order(schedule, n, num_cells, num_microbatches, virtual) for n in range(num_cells)]
    work, cell = _runnable(rows, num_cells * virtual)
    place = {each: n for n, each in enumerate(work)}
    needs = [_need(each, num_cells * virtual) for each in work]
    need = [-1 if each is None else place[each] for each in needs]
    ends = [(cell[n], cell[other]) for n, other in enumerate(need)]
    pairs = sorted({(min(e), max(e)) for e, n in zip(ends, need) if n >= 0 and e[0] != e[1]})
    at = {pair: n for n, pair in enumerate(pairs)}
    before, last = [], [-1] * num_cells
    for n, each in enumerate(cell):
        before.append(last[each])
        last[each] = n
    firsts = [place[Work("F", stage, 0)] for stage in range(num_cells * virtual)]
    lasts = {each.stage: n for n, each in enumerate(work) if each.kind == "B"}
    return Graph(
        num_cells,
        tuple(work),
        tuple(cell),
        tuple(before),
        tuple(need),
        tuple(at[min(e), max(e)] if n >= 0 and e[0] != e[1] else -1 for e, n in zip(ends, need)),
        tuple(pairs),
        tuple(last),
        tuple(firsts),
        tuple(lasts[stage] for stage in range(num_cells * virtual)),
    )


def _need(work: Work, num_stages: int) -> Work | None:
    there = work.stage - 1 if work.kind == "F" else work.stage + 1
    return work._replace(stage=there) if 0 <= there < num_stages else None


def _runnable(rows: list[tuple[Work, ...]], num_stages: int) -> tuple[list[Work], list[int]]:
    """Return all work with its cells, in an order in which dependencies come first."""
    work: list[Work] = []
    cells: list[int] = []
    done: set[Work] = set()
    waits: dict[Work, int] = {}  # for what: the cell that cannot go on without it
    place = [0] * len(rows)
    can_run = list(range(len(rows)))
    while can_run:
        cell = can_run.pop()
        for each in rows[cell][place[cell] :]:
            need = _need(each, num_stages)
            if need is not None and need not in done:
                waits[need] = cell
                break
            work.append(each)
            cells.append(cell)
            done.add(each)
            place[cell] += 1
            if each in waits:
                can_run.append(waits.pop(each))
    assert len(work) == sum(map(len, rows)), "an order is blocked"
    return work, cells


@dataclass(frozen=True)
class Times:
    """Times of a replica's work, in the order of the graph, seconds from the start of the step."""

    starts: list[float]
    ends: list[float]
    behaviour: Behaviour
    replica: int
    """Number of the replica; of the first one if it represents several."""
    count: int
    """Number of replicas that it represents."""


Floors = dict[int, float]
"""Earliest ends of first forwards, beside which parameters are gathered, by place in the graph."""


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
    """Return the times of a replica with this behaviour. rng: draws the jitter."""
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
    """Return (kind, stage) -> (collectives inside an operation, computing), seconds."""
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
    """Return the seconds of each work, by place in the graph."""
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
    """Draw the max over ranks of factor * (1 + jitter * X), X exponential; exact for any number.

    The largest of n has the distribution (1 - e^-x)^n, which one uniform number inverts.
    """
    return max(
        factor * (1.0 + jitter * largest_exponential(count, rng)) for factor, count in factors
    )


def largest_exponential(count: int, rng: random.Random) -> float:
    """Draw the largest of `count` exponential numbers of mean 1."""
    uniform = rng.random() or 0.5  # 0 itself, one draw of 2**53, has no logarithm
    return -math.log(-math.expm1(math.log(uniform) / count))
