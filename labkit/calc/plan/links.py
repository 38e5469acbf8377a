"""Seconds of collectives in a group whose ranks are on several nodes: L on each of H nodes.

    half         reduce-scatter or all-gather, D bytes: (L-1) (a_fast + D/L b_fast)
                                                      + (H-1) (a_slow + D/(L H) b_slow)
    all-reduce   two halves: collective("all_reduce", "hierarchical", ...)
    all-to-all   D bytes of each rank, L H blocks:      (L-1) (a_fast + D/(L H) b_fast)
                                                + (L H - L) (a_slow + D/(L H) b_slow)
    message      a + D b

a: latency of a message; b: seconds of a byte, at the share of the bandwidth that collectives reach.
L and H come from the layout: of the group of rank 0, those that are among the first G ranks share
its node of G GPUs. Where H nodes do not have equally many of a group, L is their mean.
Paper: Cho et al., "BlueConnect", SysML 2019; one adapter for each GPU.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from labkit.calc.hardware.cluster import Tier
from labkit.calc.layout import Layout
from labkit.calc.plan.job import Job


class Span(NamedTuple):
    """Where the ranks of a group are."""

    inside: float
    """On each node."""
    nodes: int

    @property
    def size(self) -> int:
        """Ranks."""
        return round(self.inside * self.nodes)

    @property
    def is_in_one_node(self) -> bool:
        """No slow link."""
        return self.nodes == 1


def span(gpus_per_node: int, *sides: tuple[int, int]) -> Span:
    """Of a group, from the (ranks, stride) of each axis that it lies along."""
    size, in_first = 1, [0]
    for num, stride in sides:
        size *= num
        in_first = [
            offset + place * stride
            for offset in in_first
            for place in range(min(num, -(-(gpus_per_node - offset) // stride)))
        ]
    nodes = -(-size // len(in_first))
    return Span(size / nodes, nodes)


def span_of(job: Job, layout: Layout, *axes: str, every: int = 1, num: int | None = None) -> Span:
    """Of the group along an axis, or along several.

    every: along the first of them, one rank of so many only. num: the first so many of it only.
    """
    sizes = (layout.tp, layout.pp, layout.cp, layout.dp)
    return _span_of(job.machines.gpus_per_node, layout.order, sizes, axes, every, num)


@lru_cache(maxsize=1 << 16)
def _span_of(
    gpus_per_node: int,
    order: tuple[str, ...],
    sizes: tuple[int, int, int, int],
    axes: tuple[str, ...],
    every: int,
    num: int | None,
) -> Span:
    tp, pp, cp, _ = sizes
    layout = Layout(world_size=math.prod(sizes), tp=tp, pp=pp, cp=cp, order=order)
    sides = [(layout.sizes[axis], layout.stride(axis)) for axis in axes]
    size, stride = sides[0]
    sides[0] = (num or size // every, stride * every)
    return span(gpus_per_node, *sides)


def half_seconds(job: Job, nbytes: float, where: Span) -> float:
    """Of a reduce-scatter or an all-gather: D bytes on every rank, before or after."""
    L, H = where
    fast, slow = job.machines.fast, job.machines.slow
    inside = (L - 1) * (fast.alpha + nbytes / L * _beta(job, fast)) if L > 1 else 0.0
    across = (H - 1) * (slow.alpha + nbytes / (L * H) * _beta(job, slow)) if H > 1 else 0.0
    return inside + across


def all_to_all_seconds(job: Job, nbytes: float, where: Span) -> float:
    """D bytes of each rank, equal blocks."""
    L, H = where
    block = nbytes / (L * H)
    fast, slow = job.machines.fast, job.machines.slow
    inside = (L - 1) * (fast.alpha + block * _beta(job, fast))
    return inside + (L * H - L) * (slow.alpha + block * _beta(job, slow))


def message_seconds(job: Job, nbytes: float, *, crosses_nodes: bool) -> float:
    """From one rank to another."""
    tier = job.machines.tier(crosses_nodes=crosses_nodes)
    return tier.alpha + nbytes * _beta(job, tier)


def _beta(job: Job, tier: Tier) -> float:
    return tier.beta / job.assumptions.link_share
