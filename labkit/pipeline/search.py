"""The least makespan of any schedule, by search: exact, for small problems.

    problem = Problem(placement=(0, 1, 2), num_microbatches=4, is_split=True)
    simulate(least_makespan(problem, memory=2), problem.costs).makespan     # 17: none is shorter
    trade_off(problem)                                                      # {1: 28, 2: 17, 3: 14}

Exact over: all orders of all operations on every rank, each microbatch once through each stage,
that keep every rank's memory within its limit at every moment; placement, costs and kinds are the
problem's. Mixing B with I and W is covered: a B is an I with its W right after it, only later for
the stage that waits. Not covered: recomputed activations, and stages that move.

Branch and bound. A limit on the makespan begins at a lower bound and rises until a schedule keeps
it. Under each limit, decisions are tried depth first (`partial.py` says which there are), and a
branch ends where the bound of `search_bound.py` exceeds the limit, or where the same situation has
failed with as much time left. That nth operations are of microbatch n loses nothing: exchanging
microbatches, which are alike, sorts every stage's operations without moving one in time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache, partial

from labkit import arguments
from labkit.pipeline.op import Kind, Op, Schedule
from labkit.pipeline.partial import Decision, Partial, Undo
from labkit.pipeline.problem import Problem
from labkit.pipeline.search_bound import Bound
from labkit.pipeline.simulation import plain, simulate

_MOST_OPERATIONS = 200  # decisions nest as deep
_MOST_SITUATIONS = 500_000  # half a minute or so


def least_makespan(problem: Problem, memory: float | Sequence[float] | None = None) -> Schedule:
    """A schedule that no other beats in makespan, of those within `memory`.

    memory: the most that activations may take, in the problem's unit, one number or one per rank;
    None: no limit. ValueError: memory with which there is no step at all; a problem too large.
    """
    limits = _limits(problem, memory)
    num_ops = problem.num_stages * problem.num_microbatches * len(problem.kinds)
    if num_ops > _MOST_OPERATIONS:
        raise ValueError(
            f"{num_ops} operations are too many to search all their orders: {_MOST_OPERATIONS} at "
            "most; take fewer microbatches or stages"
        )
    rows = _Search(problem, limits).rows()
    return Schedule("least makespan", rows, problem.num_stages, problem.num_microbatches)


def trade_off(problem: Problem) -> dict[float, float]:
    """Memory of every rank alike -> the least makespan within it, where more memory saves time.

    From the least memory with which there is a step, up to where more saves nothing.
    """
    # What a rank holds is a multiple of this, so between two multiples nothing changes.
    unit = math.gcd(*(problem.change(kind, s) for kind in Kind for s in range(problem.num_stages)))
    unit = unit or 1

    @cache
    def makespan(units: int) -> float:
        return _makespan(least_makespan(problem, units * unit), problem)

    fastest = _makespan(least_makespan(problem), problem)
    units = max(problem.least_memory) // unit
    enough = units * problem.num_microbatches  # for all microbatches at once
    found: dict[float, float] = {units * unit: makespan(units)}
    # More memory is never slower, so where time is saved next is found by halving.
    while makespan(units) != fastest:
        faster = partial(lambda slow, more: makespan(more) < slow, makespan(units))
        units += 1 + bisect_left(range(units + 1, enough), True, key=faster)
        found[units * unit] = makespan(units)
    return found


class _Search:
    """Raises the limit on the makespan until a schedule keeps it."""

    def __init__(self, problem: Problem, memory: Sequence[float]) -> None:
        self._problem = problem
        self._partial = Partial(problem, memory)
        self._bound = Bound(self._partial)
        self._failed: dict[tuple, int] = {}  # situation -> the most time with which it failed
        self._limit = self._bound(0)

    def rows(self) -> tuple[tuple[Op, ...], ...]:
        """The rows of a shortest schedule."""
        # All times are sums of costs, so between two multiples of this there is no makespan.
        step = math.gcd(*self._problem.all_costs)
        while not self._completes():
            self._limit += step
            assert self._limit <= self._problem.serial, "one microbatch at a time always works"
        return tuple(map(tuple, self._partial.rows))

    def _completes(self) -> bool:
        """Whether the partial schedule can be completed within the limit; if so, it now is."""
        partial = self._partial
        if not any(partial.left):
            return True
        decision = partial.next_decision()
        if decision is None or self._bound(decision.now) > self._limit:
            return False
        situation, time_left = partial.key(decision.now), self._limit - decision.now
        if self._failed.get(situation, -1) >= time_left:
            return False
        for before in self._decisions(decision):
            if self._completes():
                return True
            partial.restore(before)
        if len(self._failed) >= _MOST_SITUATIONS:
            raise ValueError(
                f"no answer after {_MOST_SITUATIONS:,} partial schedules: the problem is too large "
                "for an exact search; take fewer microbatches or stages"
            )
        self._failed[situation] = time_left
        return False

    def _decisions(self, decision: Decision) -> Iterator[Undo]:
        """Takes one decision after another; each is to be taken back before the next."""
        partial, (rank, now) = self._partial, decision
        was_waiting = partial.is_waiting[rank]
        candidates = list(partial.candidates(rank))
        for kind, stage, arrives in candidates:
            # Who waited, waited for this: what was there before could have begun before.
            if arrives == now or (arrives < now and not was_waiting):
                yield partial.begin(decision, kind, stage)
        if any(arrives > now for _, _, arrives in candidates):
            yield partial.wait(decision)


def _limits(problem: Problem, memory: float | Sequence[float] | None) -> list[float]:
    if memory is None:
        return [math.inf] * problem.num_ranks
    given = plain(memory)
    limits = list(given) if isinstance(given, tuple) else [given] * problem.num_ranks
    if len(limits) != problem.num_ranks:
        raise ValueError(
            f"memory has {len(limits)} limits for {problem.num_ranks} ranks; give one for each"
        )
    for rank, (limit, least) in enumerate(zip(limits, problem.least_memory)):
        if arguments.number("memory", limit, "0 or more", least=0) < least:
            raise ValueError(
                f"memory={limit:g} on rank {rank}: without {least:g} there is no step, since one "
                "microbatch is held on each of the rank's stages before its backward"
            )
    return limits


def _makespan(schedule: Schedule, problem: Problem) -> float:
    return simulate(schedule, problem.costs).makespan
