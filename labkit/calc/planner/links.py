"""Seconds of collectives in a group whose ranks are on several nodes: L on each of H nodes.

    half         reduce-scatter or all-gather, D bytes: (L-1) (a_fast + D/L b_fast)
                                                      + (H-1) (a_slow + D/(L H) b_slow)
    all-reduce   two halves: `hierarchical_all_reduce_seconds`
    all-to-all   D bytes of each rank, L H blocks:      (L-1) (a_fast + D/(L H) b_fast)
                                                + (L H - L) (a_slow + D/(L H) b_slow)
    message      a + D b

a: latency of a message; b: seconds of a byte, at the share of the bandwidth that collectives reach.
L and H come from the layout: an axis with stride s has ceil(G / s) neighbours on a node of G GPUs.
Paper: Cho et al., "BlueConnect", SysML 2019; one adapter for each GPU.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from labkit.calc.hardware.cluster import Tier
from labkit.calc.layout import Layout
from labkit.calc.planner.job import Job


class Span(NamedTuple):
    """Where the ranks of a group are."""

    inside: int
    """On each node."""
    nodes: int

    @property
    def size(self) -> int:
        """Ranks."""
        return self.inside * self.nodes

    @property
    def is_in_one_node(self) -> bool:
        """No slow link."""
        return self.nodes == 1


def span(size: int, stride: int, gpus_per_node: int) -> Span:
    """Of `size` ranks, each `stride` from the next."""
    inside = min(size, -(-gpus_per_node // stride))
    return Span(inside, -(-size // inside))


def span_of(job: Job, layout: Layout, *axes: str, every: int = 1, num: int | None = None) -> Span:
    """Of the group along an axis, or along neighbouring ones.

    every: one rank of so many only. num: the first so many only.
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
    size = num or math.prod(layout.sizes[axis] for axis in axes) // every
    return span(size, min(layout.stride(axis) for axis in axes) * every, gpus_per_node)


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
