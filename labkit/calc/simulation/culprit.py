"""Whom everyone waits for: what a step would gain if one disturbance were gone.

    Rank 5 (pp 1, dp 0, cp 0, tp 1), slower by 1.5, costs 12% of the step.

A second simulation answers it, without the disturbance: what lies on the longest path says who was
waited for, and not how much sooner the next slowest would have been done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from labkit.calc.simulation.disturbance import Disturbance, Jitter, SlowLink, SlowNode, Straggler

if TYPE_CHECKING:
    from labkit.calc.simulation.simulated import SimulatedStep

_MOST_TRIED = 16


class Cost(NamedTuple):
    """A disturbance and the share of the step that would be gone without it."""

    disturbance: Disturbance
    share: float


def costs(step: SimulatedStep) -> tuple[Cost, ...]:
    """Of each disturbance, the dearest first; of more than 16, those with the largest factors."""
    tried = sorted(step.disturbances, key=_size, reverse=True)[:_MOST_TRIED]
    found = []
    for each in tried:
        others = list(step.disturbances)
        others.remove(each)
        found.append(Cost(each, 1 - _seconds(step, others) / step.seconds))
    return tuple(sorted(found, key=lambda cost: cost.share, reverse=True))


def waits_for(step: SimulatedStep) -> str:
    """In one sentence."""
    if not step.disturbances:
        return "No rank is slower than others of its stage."
    dearest, *others = costs(step)
    text = f"{_told(step, dearest.disturbance)} costs {dearest.share:.0%} of the step."
    if others:
        together = 1 - _seconds(step, []) / step.seconds
        text = f"{text[:-1]}, all {len(step.disturbances)} disturbances together {together:.0%}."
    return text


def _seconds(step: SimulatedStep, disturbances: list[Disturbance]) -> float:
    from labkit.calc.simulation.step import simulate_step  # which makes the steps that come here

    return simulate_step(
        step.pieces, step.layout, disturbances, schedule=step.schedule, seed=step.seed
    ).seconds


def _size(disturbance: Disturbance) -> float:
    return disturbance.share if isinstance(disturbance, Jitter) else disturbance.factor


def _told(step: SimulatedStep, disturbance: Disturbance) -> str:
    if isinstance(disturbance, Jitter):
        return f"Jitter of {disturbance.share:.1%}"
    if isinstance(disturbance, Straggler):
        at = step.layout.coordinates(disturbance.rank)
        where = ", ".join(f"{axis} {place}" for axis, place in at.items() if _has(step, axis))
        return f"Rank {disturbance.rank} ({where or 'alone'}), slower by {disturbance.factor:g},"
    if isinstance(disturbance, SlowLink):
        a, b = disturbance.ranks
        return f"The link between ranks {a} and {b}, slower by {disturbance.factor:g},"
    assert isinstance(disturbance, SlowNode)
    first, last = min(disturbance.ranks), max(disturbance.ranks)
    ranks = f"ranks {first} to {last}" if last > first else f"rank {first}"
    return f"The node of {ranks}, its links slower by {disturbance.factor:g},"


def _has(step: SimulatedStep, axis: str) -> bool:
    return step.layout.sizes[axis] > 1
