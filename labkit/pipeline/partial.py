"""A schedule up to a moment: what every rank has begun, and what has arrived where.

The search extends it by one decision at a time and takes decisions back. Decisions are made in the
order of time: at each, the rank that is free first begins an operation or waits for a message. It
never waits for nothing: who waits begins something at the moment at which that arrives. Every
schedule without needless idle time is made of such decisions, and no step is faster with it.

Microbatches are alike, so the nth F of a stage is that of microbatch n, and so for B, I and W:
numbers of operations are all there is to know of what was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labkit.pipeline.op import Kind, Op
from labkit.pipeline.problem import Problem

FAR = 10**12  # later than everything: not known yet


# What a decision changed: rank, free, is_waiting, held, and the (kind, stage) begun, if any.
Undo = tuple[int, int, bool, int, tuple[Kind, int] | None]


class Decision(NamedTuple):
    """Rank `rank` decides at the time `now` what to do next."""

    rank: int
    now: int


class Partial:
    """See the module. `begin`, `wait` extend it; `restore` takes back what they did."""

    def __init__(self, problem: Problem, memory: Sequence[float]) -> None:
        """memory: by rank, the most that its activations may take; inf for no limit."""
        stages, ranks = range(problem.num_stages), range(problem.num_ranks)
        self.problem, self.memory = problem, memory
        self.kinds, self.gradient = problem.kinds, problem.kinds[1]
        self.cost = {kind: [problem.cost(kind, stage) for stage in stages] for kind in self.kinds}
        self.stages_of = [[s for s in stages if problem.placement[s] == rank] for rank in ranks]
        self.begun = {kind: [0 for _ in stages] for kind in self.kinds}
        # By kind and stage, when the nth product is there where it is needed.
        self.arrivals: dict[Kind, list[list[int]]] = {k: [[] for _ in stages] for k in self.kinds}
        self.free = [0 for _ in ranks]  # of a rank that waits: since when
        self.is_waiting = [False for _ in ranks]
        self.held = [0 for _ in ranks]
        self.left = [
            sum(problem.num_microbatches * self.cost[k][s] for k in self.kinds for s in own)
            for own in self.stages_of
        ]
        self.rows: list[list[Op]] = [[] for _ in ranks]
        self._change = {k: [problem.change(k, stage) for stage in stages] for k in self.kinds}
        self._delay = {  # of the product, on its way to the stage that needs it
            (Kind.F, s): problem.send_cost(s) if s + 1 in stages else 0 for s in stages
        } | {(self.gradient, s): problem.send_cost(s - 1) if s else 0 for s in stages}

    def source(self, kind: Kind, stage: int) -> int | None:
        """The other stage whose product of the same kind an operation needs; None: no other's."""
        if kind is Kind.W:
            return None
        there = stage - 1 if kind is Kind.F else stage + 1
        return there if 0 <= there < self.problem.num_stages else None

    def delay(self, kind: Kind, stage: int) -> int:
        """What the product of an operation is under way."""
        return self._delay.get((kind, stage), 0)

    def next_decision(self) -> Decision | None:
        """Who decides first, of those that have work left; None if all wait for each other."""
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
                n = self.begun[kind][stage]
                if n == (self.begun[self.kinds[index - 1]][stage] if index else m):
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
                elif n < self.begun[kind][source]:
                    yield kind, stage, -1

    def begin(self, decision: Decision, kind: Kind, stage: int) -> Undo:
        """The rank performs its next operation of a kind and stage. Returns what undoes it."""
        rank, now = decision
        before = (rank, self.free[rank], self.is_waiting[rank], self.held[rank], (kind, stage))
        end = now + self.cost[kind][stage]
        self.rows[rank].append(Op(kind, stage, self.begun[kind][stage]))
        self.begun[kind][stage] += 1
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
            self.begun[kind][stage] -= 1
            self.arrivals[kind][stage].pop()
            self.left[rank] += self.cost[kind][stage]

    def key(self, now: int) -> tuple:
        """Two partial schedules with one key go on alike: all that is to come, seen from now.

        When a message arrived that has been there for a while makes no difference, nor on a busy
        rank one that comes before the rank is free.
        """
        begun = [count for kind in self.kinds for count in self.begun[kind]]
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
                    for at in self.arrivals[kind][source][self.begun[kind][stage] :]:
                        under_way.append(at - now if at > seen else -1)
        return (*begun, *ranks, *under_way)
