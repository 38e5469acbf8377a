"""What if: a step replayed with one thing changed, to see what the change would gain.

    measured       rank 0  |== compute ==|~~~~~ waits for rank 1 ~~~~~|= transfer =|
                   rank 1  |================ compute =================|= transfer =|
    no straggler   rank 0  |== compute ==|= transfer =|
                   rank 1  |== compute ==|= transfer =|

Each function takes the Dependencies of a trace and returns a Change, which `Dependencies.seconds`
replays. What moves where stays as it was: who waits for whom, and in which order.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from labkit.profile.breakdown import HOST, TRANSFER
from labkit.profile.dependencies import Change, Dependencies, Part
from labkit.profile.step_trace import COMPUTE, COPY, DATA

OWN = (COMPUTE, DATA, COPY, HOST)


def without(*kinds: str) -> Change:
    """Parts of these kinds take no time: `without("data")` is a loader that is always ready."""
    return lambda part: 0.0 if part.kind in kinds else part.seconds


def links(times: float, latency_s: float = 0.0) -> Change:
    """Links with `times` the bandwidth; `latency_s` of each transfer stays as it is."""

    def change(part: Part) -> float:
        if part.kind != TRANSFER:
            return part.seconds
        fixed_s = min(latency_s, part.seconds)
        return fixed_s + (part.seconds - fixed_s) / times

    return change


def no_straggler(graph: Dependencies, rank: int) -> Change:
    """A rank works as fast as the median of the others, stretch by stretch.

    Ranks whose programs differ, such as stages of a pipeline, have no stretches in common: there a
    rank's work is scaled so that its sum is the median of the others' sums.
    """
    return _evened(graph, (rank,), least=True)


def balanced(graph: Dependencies) -> Change:
    """All ranks share the same work: in each stretch every rank takes the mean of all."""
    return _evened(graph, tuple(graph.trace.ranks), least=False)


def _evened(graph: Dependencies, ranks: tuple[int, ...], *, least: bool) -> Change:
    by_stretch: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    sums: dict[int, float] = defaultdict(float)
    for part in graph.parts():
        if part.kind in OWN:
            by_stretch[part.stretch][part.rank] += part.seconds
            sums[part.rank] += part.seconds
    counts = {sum(rank in each for each in by_stretch.values()) for rank in graph.trace.ranks}
    factors: dict[tuple[int, int], float] = {}
    for stretch, seconds in by_stretch.items():
        for rank in set(ranks) & set(seconds):
            own, of_all = (seconds, seconds) if len(counts) == 1 else (sums, sums)
            goal_s = _goal(of_all, rank) if least else sum(of_all.values()) / len(of_all)
            factor = goal_s / own[rank] if own[rank] else 1.0
            factors[rank, stretch] = min(1.0, factor) if least else factor
    return lambda part: (
        part.seconds * factors.get((part.rank, part.stretch), 1.0)
        if part.kind in OWN
        else part.seconds
    )


def _goal(seconds: dict[int, float], rank: int) -> float:
    others = [value for other, value in seconds.items() if other != rank]
    return median(others) if others else seconds[rank]
