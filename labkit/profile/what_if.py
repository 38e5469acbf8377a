"""What if: a step replayed with one thing changed, to see what the change would gain.

    measured       rank 0  |== compute ==|~~~~~ waits for rank 1 ~~~~~|= transfer =|
                   rank 1  |================ compute =================|= transfer =|
    no straggler   rank 0  |== compute ==|= transfer =|
                   rank 1  |== compute ==|= transfer =|

Each function returns a Change, which `Dependencies.seconds` replays. The program stays as it was:
each rank does the same work in the same order, and waits for the same ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import mean, median

from labkit.profile.breakdown import HOST, TRANSFER
from labkit.profile.dependencies import STALL, Change, Dependencies, Part
from labkit.profile.step_trace import COMPUTE, COPY, DATA

OWN = (COMPUTE, DATA, COPY, HOST, STALL)


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


def no_straggler(graph: Dependencies, rank: int, *kinds: str) -> Change:
    """A rank is as fast as the median of the others.

    kinds: of its work, such as "data"; all kinds where none is named. Where all ranks run the same
    program, each stretch of work between two exchanges is as fast as the others' same stretch.
    Stages of a pipeline have programs of their own: there all of its work is scaled alike.
    """
    kinds = kinds or OWN
    others = [parts for other, parts in graph.stretches.items() if other != rank]
    own = graph.stretches[rank]
    if others and all(len(each) == len(own) for each in others):
        same = [median(each) for each in zip(*([_of_kinds(p, kinds) for p in o] for o in others))]
        factors = [_at_most_1(goal_s, _of_kinds(p, kinds)) for goal_s, p in zip(same, own)]
        by_part = {id(part): f for f, parts in zip(factors, own) for part in parts}
        return lambda part: (
            part.seconds * (by_part.get(id(part), 1.0) if part.kind in kinds else 1.0)
        )
    sums = graph.own_seconds(*kinds)
    goal_s = median([sums[other] for other in sums if other != rank] or [sums[rank]])
    return _scaled(kinds, {rank: _at_most_1(goal_s, sums[rank])})


def _of_kinds(parts: Iterable[Part], kinds: Collection[str]) -> float:
    return sum(part.seconds for part in parts if part.kind in kinds)


def _at_most_1(goal_s: float, own_s: float) -> float:
    return min(1.0, goal_s / own_s) if own_s else 1.0


def balanced(graph: Dependencies) -> Change:
    """All ranks share the computing: each computes as long as the mean of all."""
    sums = graph.own_seconds(COMPUTE)
    even_s = mean(sums.values())
    return _scaled((COMPUTE,), {rank: even_s / own_s for rank, own_s in sums.items() if own_s})


def _scaled(kinds: Collection[str], factors: Mapping[int, float]) -> Change:
    def change(part: Part) -> float:
        return part.seconds * (factors.get(part.rank, 1.0) if part.kind in kinds else 1.0)

    return change
