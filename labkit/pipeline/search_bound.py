"""No completion of a partial schedule can be shorter than this.

For every stage and kind: when its next operation can begin at the earliest, then all that are left
of the kind, one after another, then the way of the last of them to the end of the step. For every
rank: when it can go on, then all its work that is left; and the same without the Ws, then the way
of the last gradient to the end.
"""

from __future__ import annotations

from labkit.pipeline.op import Kind
from labkit.pipeline.partial import Partial


class Bound:
    """The least makespan of any completion, from below."""

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
            + (m - partial.begun[kind][stage]) * partial.cost[kind][stage]
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
            (m - partial.begun[Kind.W][stage]) * partial.cost[Kind.W][stage]
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
                n = partial.begun[kind][stage]
                if n == m:
                    continue
                begin = max(now, partial.free[partial.problem.placement[stage]])
                source = partial.source(kind, stage)
                if source is not None:
                    begin = max(begin, self._arrival(kind, source, n, begins))
                if index and partial.begun[partial.kinds[index - 1]][stage] == n:
                    before = partial.kinds[index - 1]
                    begin = max(begin, begins[before, stage] + partial.cost[before][stage])
                begins[kind, stage] = begin
        return begins

    def _arrival(self, kind: Kind, source: int, n: int, begins: dict[tuple[Kind, int], int]) -> int:
        partial = self._partial
        if n < partial.begun[kind][source]:
            return partial.arrivals[kind][source][n]
        return begins[kind, source] + partial.cost[kind][source] + partial.delay(kind, source)
