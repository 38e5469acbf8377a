"""The least makespan of any schedule, by search: the oracle of the puzzles' budgets.

    problem = Problem(placement=(0, 1, 2), num_microbatches=4, is_split=True)
    simulate(least_makespan(problem, memory=2), problem.costs).makespan     # 17: none is shorter

Exact over all orders of all operations on every rank that keep every rank's memory within its
limit at every moment. Costs and memory are whole numbers.

Branch and bound. A limit on the makespan begins at a lower bound and rises until a schedule keeps
it. Under each limit, decisions are tried depth first, and a branch ends where the bound exceeds the
limit, or where the same situation has failed with as much time left. That nth operations are of
microbatch n loses nothing: exchanging microbatches, which are alike, sorts every stage's operations
without moving one in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labkit.grade.puzzles.book import Problem
from labkit.pipeline import Kind, Op, Schedule

MOST_SITUATIONS = 500_000  # half a minute or so
FAR = 10**12  # later than everything: not known yet

# The state before a decision: rank, free, is_waiting, held, and the (kind, stage) started, if any.
Undo = tuple[int, int, bool, int, tuple[Kind, int] | None]


def least_memory(problem: Problem) -> list[int]:
    """By rank, what no step does without: before the first backward, one F of each stage."""
    return [
        sum(held for held, holder in zip(problem.held, problem.placement) if holder == rank)
        for rank in range(problem.num_ranks)
    ]


def least_makespan(problem: Problem, memory: float | Sequence[float] | None = None) -> Schedule:
    """A schedule that no other beats in makespan, of those within `memory`.

    memory: the most that activations may take, one number or one per rank; None: no limit.
    ValueError: memory with which there is no step at all; a problem too large.
    """
    limits = memory if isinstance(memory, list) else [memory or math.inf] * problem.num_ranks
    if any(limit < least for limit, least in zip(limits, least_memory(problem))):
        raise ValueError(f"no step within {memory}")
    rows = _Search(problem, limits).rows()
    return Schedule("least makespan", rows, problem.num_stages, problem.num_microbatches)


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
        kinds, stages = self._problem.kinds, range(self._problem.num_stages)
        sends = [self._problem.send_cost(stage) for stage in stages[:-1]]
        step = math.gcd(*(self._problem.cost(kind, s) for kind in kinds for s in stages), *sends)
        while not self._completes():
            self._limit += step
        return tuple(map(tuple, self._partial.rows))

    def _completes(self) -> bool:
        """Return whether the partial schedule can be completed within the limit; if so, do it."""
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
        if len(self._failed) >= MOST_SITUATIONS:
            raise ValueError("the problem is too large")
        self._failed[situation] = time_left
        return False

    def _decisions(self, decision: Decision) -> Iterator[Undo]:
        """Takes one decision after another; each is to be taken back before the next."""
        partial, (rank, now) = self._partial, decision
        was_waiting = partial.is_waiting[rank]
        candidates = list(partial.candidates(rank))
        for kind, stage, arrives in candidates:
            # A rank that waited takes only what arrives now: the rest could have started before.
            if arrives == now or (arrives < now and not was_waiting):
                yield partial.begin(decision, kind, stage)
        if any(arrives > now for _, _, arrives in candidates):
            yield partial.wait(decision)


class Decision(NamedTuple):
    """Rank `rank` decides at the time `now` what to do next."""

    rank: int
    now: int


class Partial:
    """A schedule up to a moment: what every rank has started, and what has arrived where.

    `begin`, `wait` extend it by a decision; `restore` takes back what they did. Decisions are made
    in the order of time: at each, the rank that is free first begins an operation or waits for a
    message, and then begins something at the moment at which that arrives. Every schedule without
    needless idle time is made of such decisions, and no step is faster with it.

    Microbatches are alike, so numbers of operations are all there is to know of what was done.
    """

    def __init__(self, problem: Problem, memory: Sequence[float]) -> None:
        """memory: by rank, the most that its activations may take; inf for no limit."""
        stages, ranks = range(problem.num_stages), range(problem.num_ranks)
        self.problem, self.memory = problem, memory
        self.kinds, self.gradient = problem.kinds, problem.kinds[1]
        self.cost = {kind: [problem.cost(kind, stage) for stage in stages] for kind in self.kinds}
        self.stages_of = [[s for s in stages if problem.placement[s] == rank] for rank in ranks]
        self.started = {kind: [0 for _ in stages] for kind in self.kinds}
        # By kind and stage, when the nth product is there where it is needed.
        self.arrivals: dict[Kind, list[list[int]]] = {k: [[] for _ in stages] for k in self.kinds}
        self.free = [0 for _ in ranks]  # for a waiting rank: since when it waits
        self.is_waiting = [False for _ in ranks]
        self.held = [0 for _ in ranks]
        self.left = [
            sum(problem.num_microbatches * self.cost[k][s] for k in self.kinds for s in own)
            for own in self.stages_of
        ]
        self.rows: list[list[Op]] = [[] for _ in ranks]
        self._change = {k: [problem.change(k, stage) for stage in stages] for k in self.kinds}
        self._delay = {  # time until the product arrives at the stage that needs it
            (Kind.F, s): problem.send_cost(s) if s + 1 in stages else 0 for s in stages
        } | {(self.gradient, s): problem.send_cost(s - 1) if s else 0 for s in stages}

    def source(self, kind: Kind, stage: int) -> int | None:
        """The other stage whose product of the same kind an operation needs; None: no other's."""
        if kind is Kind.W:
            return None
        there = stage - 1 if kind is Kind.F else stage + 1
        return there if 0 <= there < self.problem.num_stages else None

    def delay(self, kind: Kind, stage: int) -> int:
        """Return the time that the product of an operation is in flight."""
        return self._delay.get((kind, stage), 0)

    def next_decision(self) -> Decision | None:
        """Return the decision that comes first in time; None if all ranks wait for each other."""
        best = Decision(-1, FAR)
        for rank, left in enumerate(self.left):
            if not left:
                continue
            at = since = self.free[rank]
            if self.is_waiting[rank]:
                at = min((a for _, _, a in self.candidates(rank) if a > since), default=FAR)
            if at < best.now:
                best = Decision(rank, at)
        return best if best.now < FAR else None

    def candidates(self, rank: int) -> Iterator[tuple[Kind, int, int]]:
        """(kind, stage, when its message arrives) of what a rank may do next.

        What its own stages must have done before, is done, and its memory suffices. The time is -1
        where no message is needed, and FAR where that is not sent yet. Backward first, from the
        last stage: in that order good schedules are found early.
        """
        placement, m = self.problem.placement, self.problem.num_microbatches
        for index in (1, 0, 2)[: len(self.kinds)]:
            kind = self.kinds[index]
            for stage in reversed(self.stages_of[rank]):
                n = self.started[kind][stage]
                if n == (self.started[self.kinds[index - 1]][stage] if index else m):
                    continue
                change = self._change[kind][stage]
                if change > 0 and self.held[rank] + change > self.memory[rank]:
                    continue
                source = self.source(kind, stage)
                if source is None:
                    yield kind, stage, -1
                elif placement[source] != rank:
                    sent = self.arrivals[kind][source]
                    yield kind, stage, sent[n] if n < len(sent) else FAR
                elif n < self.started[kind][source]:
                    yield kind, stage, -1

    def begin(self, decision: Decision, kind: Kind, stage: int) -> Undo:
        """The rank performs its next operation of a kind and stage. Returns what undoes it."""
        rank, now = decision
        before = (rank, self.free[rank], self.is_waiting[rank], self.held[rank], (kind, stage))
        end = now + self.cost[kind][stage]
        self.rows[rank].append(Op(kind, stage, self.started[kind][stage]))
        self.started[kind][stage] += 1
        self.arrivals[kind][stage].append(end + self.delay(kind, stage))
        self.held[rank] += self._change[kind][stage]
        self.left[rank] -= self.cost[kind][stage]
        self.free[rank], self.is_waiting[rank] = end, False
        return before

    def wait(self, decision: Decision) -> Undo:
        """The rank leaves alone what it could do, until a message comes. Returns what undoes it."""
        rank, now = decision
        before = (rank, self.free[rank], self.is_waiting[rank], self.held[rank], None)
        self.free[rank], self.is_waiting[rank] = now, True
        return before

    def restore(self, before: Undo) -> None:
        """Take back the latest decision."""
        rank, self.free[rank], self.is_waiting[rank], self.held[rank], done = before
        if done is not None:
            kind, stage = done
            self.rows[rank].pop()
            self.started[kind][stage] -= 1
            self.arrivals[kind][stage].pop()
            self.left[rank] += self.cost[kind][stage]

    def key(self, now: int) -> tuple:
        """Two partial schedules with one key go on alike: all that is to come, seen from now.

        When a message arrived that has been there for a while makes no difference, nor on a busy
        rank one that comes before the rank is free.
        """
        started = [count for kind in self.kinds for count in self.started[kind]]
        ranks = [
            0 if not self.left[rank] else -1 if self.is_waiting[rank] else self.free[rank] - now
            for rank in range(self.problem.num_ranks)
        ]
        under_way = []
        for kind in self.kinds[:2]:
            for stage, rank in enumerate(self.problem.placement):
                source = self.source(kind, stage)
                if source is not None:
                    seen = now if self.is_waiting[rank] else max(now, self.free[rank])
                    for at in self.arrivals[kind][source][self.started[kind][stage] :]:
                        under_way.append(at - now if at > seen else -1)
        return (*started, *ranks, *under_way)


class Bound:
    """The least makespan of any completion of a partial schedule, from below.

    For every stage and kind: when its next operation can begin at the earliest, then all that are
    left of the kind, then the way of the last of them to the end of the step. For every rank: when
    it can go on, then all its work that is left; and the same without the Ws, then the way of the
    last gradient to the end.
    """

    def __init__(self, partial: Partial) -> None:
        self._partial = partial
        last = partial.problem.num_stages - 1
        weights = partial.cost.get(Kind.W, [0] * (last + 1))
        # From the end of an operation to the end of the step, at least.
        after = [weights[0]]
        for stage in range(1, last + 1):
            onwards = partial.cost[partial.gradient][stage - 1] + after[stage - 1]
            after.append(max(weights[stage], partial.delay(partial.gradient, stage) + onwards))
        self._after = {partial.gradient: after, Kind.F: [0] * (last + 1), Kind.W: [0] * (last + 1)}
        self._after[Kind.F][last] = partial.cost[partial.gradient][last] + after[last]
        for stage in reversed(range(last)):
            onwards = partial.cost[Kind.F][stage + 1] + self._after[Kind.F][stage + 1]
            self._after[Kind.F][stage] = partial.delay(Kind.F, stage) + onwards

    def __call__(self, now: int) -> int:
        """`now`: the time of the next decision; nothing begins before."""
        partial, m = self._partial, self._partial.problem.num_microbatches
        begins = self._earliest(now)
        ends = [
            begin
            + (m - partial.started[kind][stage]) * partial.cost[kind][stage]
            + self._after[kind][stage]
            for (kind, stage), begin in begins.items()
        ]
        ranks = range(partial.problem.num_ranks)
        return max([*ends, *(self._of_rank(rank, begins) for rank in ranks)])

    def _of_rank(self, rank: int, begins: dict[tuple[Kind, int], int]) -> int:
        partial, m = self._partial, self._partial.problem.num_microbatches
        if not partial.left[rank]:
            return partial.free[rank]
        stages, gradient = partial.stages_of[rank], partial.gradient
        end = partial.left[rank] + min(
            begins[kind, stage]
            for kind in partial.kinds
            for stage in stages
            if (kind, stage) in begins
        )
        tails = [self._after[gradient][s] for s in stages if (gradient, s) in begins]
        if not tails:
            return end
        weights = sum(
            (m - partial.started[Kind.W][stage]) * partial.cost[Kind.W][stage]
            for stage in stages
            if Kind.W in partial.kinds
        )
        return max(end, end - weights + min(tails))

    def _earliest(self, now: int) -> dict[tuple[Kind, int], int]:
        """(kind, stage) -> when its next operation can begin, of those that have one left."""
        partial, m = self._partial, self._partial.problem.num_microbatches
        stages = range(partial.problem.num_stages)
        begins: dict[tuple[Kind, int], int] = {}
        for index, kind in enumerate(partial.kinds):
            for stage in reversed(stages) if kind is partial.gradient else stages:
                n = partial.started[kind][stage]
                if n == m:
                    continue
                begin = max(now, partial.free[partial.problem.placement[stage]])
                source = partial.source(kind, stage)
                if source is not None:
                    begin = max(begin, self._arrival(kind, source, n, begins))
                if index and partial.started[partial.kinds[index - 1]][stage] == n:
                    before = partial.kinds[index - 1]
                    begin = max(begin, begins[before, stage] + partial.cost[before][stage])
                begins[kind, stage] = begin
        return begins

    def _arrival(self, kind: Kind, source: int, n: int, begins: dict[tuple[Kind, int], int]) -> int:
        partial = self._partial
        if n < partial.started[kind][source]:
            return partial.arrivals[kind][source][n]
        return begins[kind, source] + partial.cost[kind][source] + partial.delay(kind, source)
