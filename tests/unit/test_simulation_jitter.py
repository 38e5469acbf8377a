"""Jitter: the largest of many draws in one, against as many draws; steps against all ranks."""

import math
import random
import statistics

import pytest
from simulated_by_rank import every_rank, pieces

from labkit.calc import Layout, simulate
from labkit.calc.simulate import Jitter, Straggler
from labkit.calc.simulate.graph import largest_exponential

LAYOUT = Layout(world_size=24, tp=4, pp=2)
PARTS = pieces(2, 4)


def distance(ones, others):
    """Return the largest distance of two distribution functions (Kolmogorov and Smirnov)."""
    points = sorted([(x, 1 / len(ones)) for x in ones] + [(x, -1 / len(others)) for x in others])
    found, most = 0.0, 0.0
    for _, weight in points:
        found += weight
        most = max(most, abs(found))
    return most


def allowed(ones, others):
    """Return a limit that 9,999 of 10,000 pairs of samples of one distribution keep."""
    return 2.23 * math.sqrt((len(ones) + len(others)) / (len(ones) * len(others)))


@pytest.mark.parametrize("count", [1, 2, 8, 100])
def test_the_largest_of_many_is_drawn_by_its_distribution(count):
    rng = random.Random(count)
    at_once = [largest_exponential(count, rng) for _ in range(4000)]
    one_by_one = [max(rng.expovariate(1) for _ in range(count)) for _ in range(4000)]
    assert distance(at_once, one_by_one) < allowed(at_once, one_by_one)
    harmonic = sum(1 / n for n in range(1, count + 1))
    assert statistics.fmean(at_once) == pytest.approx(harmonic, rel=0.05)


@pytest.mark.parametrize("given", [(Jitter(0.2),), (Jitter(0.2), Straggler(5, 1.3))])
def test_steps_with_jitter_are_distributed_as_those_of_all_ranks(given):
    classes = [simulate.step(PARTS, LAYOUT, given, seed=seed).seconds for seed in range(150)]
    ranks = [every_rank(PARTS, LAYOUT, given, seed=seed) for seed in range(150)]
    assert distance(classes, ranks) < allowed(classes, ranks)


def test_what_jitter_costs_grows_with_the_ranks_that_wait_for_each_other():
    def excess(tp):
        layout = Layout(world_size=tp, tp=tp)
        parts = pieces(1, 64, reduce_s=(0.0,), gather_s=(0.0,), compute_s=(3.0,), optimizer_s=0)
        seconds = [simulate.step(parts, layout, [Jitter(0.05)], seed=n).seconds for n in range(20)]
        return statistics.fmean(seconds) / (64 * 3) - 1

    for tp in (1, 8, 64):
        harmonic = sum(1 / n for n in range(1, tp + 1))
        assert excess(tp) == pytest.approx(0.05 * harmonic, rel=0.1)


def test_replicas_that_are_drawn_cost_as_much_as_replicas_that_are_simulated():
    layout, parts, given = Layout(world_size=1024, tp=2, pp=2), pieces(2, 16), [Jitter(0.2)]
    calm = simulate.step(parts, layout).seconds
    per_replica = 2 * 2 * 16

    def excess(most_events, seed):
        step = simulate.step(parts, layout, given, seed=seed, most_events=most_events)
        assert step.num_events == min(256, most_events // per_replica) * per_replica
        return step.seconds - calm

    all_of_them = statistics.fmean(excess(256 * per_replica, n) for n in range(16))
    drawn = statistics.fmean(excess(32 * per_replica, n) for n in range(40, 88))
    alone = statistics.fmean(
        simulate.step(parts, Layout(world_size=4, tp=2, pp=2), given, seed=n).seconds - calm
        for n in range(100)
    )
    # A normal number's tail is a little lighter than that of the largest exponential ones.
    assert drawn == pytest.approx(all_of_them, rel=0.06)  # found: 2% less
    assert alone < 0.8 * all_of_them


def test_a_seed_gives_the_same_step_again_and_another_seed_another():
    def seconds(seed):
        return simulate.step(PARTS, LAYOUT, [Jitter(0.1)], seed=seed).seconds

    assert seconds(1) == seconds(1) != seconds(2)
