"""Bytes that cross each tier, from the journals, equal formulas written without the code."""

import pytest
import torch

from labkit import calc, run
from labkit.collectives import hierarchical_all_reduce, ring_all_reduce, two_tiers

NUMELS = [0, 1, 2, 5, 24, 103]


def divisors(n):
    return [number for number in range(1, n + 1) if n % number == 0]


def reduce_each(world):
    for ranks_per_host in divisors(world.size):
        fast, slow = two_tiers(world, ranks_per_host)
        for numel in NUMELS:
            x = torch.ones(numel, dtype=torch.float64)
            with world.region(f"tiers of {ranks_per_host}, {numel}"):
                hierarchical_all_reduce(x, fast, slow)
            with world.region(f"flat, {ranks_per_host}, {numel}"):
                ring_all_reduce(x, world)


def sends_within(timeline, name):
    region = next(region for region in timeline.regions if region.name == name)
    inside = [op for op in timeline.operations if region.start_s <= op.posted_s <= region.end_s]
    assert {op.kind for op in inside} <= {"send", "recv"}, "only send and recv"
    return [op for op in inside if op.kind == "send"]


def by_tier(sends, rank, ranks_per_host):
    """((fast bytes, slow bytes), (fast messages, slow messages))"""
    crosses = [op.peer // ranks_per_host != rank // ranks_per_host for op in sends]
    slow = [op.sent_bytes for op, is_slow in zip(sends, crosses) if is_slow]
    fast = [op.sent_bytes for op, is_slow in zip(sends, crosses) if not is_slow]
    return (sum(fast), sum(slow)), (len(fast), len(slow))


@pytest.mark.parametrize("world_size", [1, 4, 6])
def test_each_tier_carries_what_calc_says(world_size):
    for rank, timeline in enumerate(run(reduce_each, world_size, timeout=600).timeline):
        for ranks_per_host in divisors(world_size):
            for numel in NUMELS:
                sends = sends_within(timeline, f"tiers of {ranks_per_host}, {numel}")
                sent, messages = by_tier(sends, rank, ranks_per_host)
                asked = {"itemsize": 8, "rank": rank, "ranks_per_host": ranks_per_host}
                hierarchical, flat = (
                    calc.collective("all_reduce", name, world_size, 8 * numel, **asked)
                    for name in ("hierarchical", "ring")
                )
                assert sent == hierarchical.tier_bytes
                assert messages == hierarchical.tier_steps
                sends = sends_within(timeline, f"flat, {ranks_per_host}, {numel}")
                sent, _ = by_tier(sends, rank, ranks_per_host)
                assert sent == flat.tier_bytes
