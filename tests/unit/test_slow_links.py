"""Pairs that do not disturb each other, and a degraded uplink found by bisection."""

import math
from dataclasses import replace
from itertools import combinations

import pytest

from labkit import FatTree, Link, Topology, measure, replay, run, viz
from labkit.measure import slow_links
from labkit.measure.slow_links import Bisection, Pairs, Traffic, bisect, rounds_of_pairs
from labkit.viz import style
from tests.replayed import seconds_of, timed

TREE = FatTree(hosts=8, hosts_per_leaf=2, leaves_per_pod=2, slow=Link(20e6, 200e-6))


@pytest.mark.parametrize("n", range(2, 10))
def test_a_tournament_has_every_pair_once_and_no_rank_twice_in_a_round(n):
    rounds = rounds_of_pairs(n)
    assert sorted(sum(rounds, ())) == list(combinations(range(n), 2))
    assert len(rounds) == n - 1 + n % 2
    for members in rounds:
        assert len(set(sum(members, ()))) == 2 * len(members) == n - n % 2


@pytest.mark.parametrize(
    "topology", [TREE, Topology(hosts=2, ranks_per_host=4, fast=Link(1), slow=Link(1))]
)
def test_pairs_of_a_round_share_no_link(topology):
    rounds = rounds_of_pairs(8, topology)
    assert sorted(sum(rounds, ())) == list(combinations(range(8), 2))
    for members in rounds:
        ports = [port.number for pair in members for port in topology.path(*pair)]
        ports += [port.number for a, b in members for port in topology.path(b, a)]
        assert len(set(ports)) == len(ports)
    assert max(map(len, rounds)) > 1


@pytest.mark.parametrize("n", [3, 4, 5, 7, 8, 100])
def test_bisection_finds_every_leaf_in_log2_measurements(n):
    for degraded in range(n):
        asked = []

        def is_slow(leaves, asked=asked, degraded=degraded):
            assert 2 <= len(set(leaves)) == len(leaves)
            asked.append(leaves)
            return degraded in leaves

        assert bisect(range(n), is_slow) == degraded
        assert len(asked) <= 1 + math.ceil(math.log2(n))
    assert bisect(range(n), lambda leaves: False) is None


def test_no_pair_shows_a_degraded_uplink():
    """Messages of real ranks, replayed over the tree: each pair has the links to itself."""
    tree, nbytes = TREE.degraded("leaf 2", 0.5), 4096
    args = rounds_of_pairs(8, tree), nbytes, 1
    timelines = replay(run(slow_links.pairs_on_rank, 8, args).timeline, tree)
    for a, b in combinations(range(8), 2):
        there, back = (op for op in timelines[a].operations if op.peer == b)
        one_way_s = (back.done_s - there.posted_s) / 2
        assert one_way_s == pytest.approx(tree.slow.seconds(nbytes), rel=1e-9)


# Questions that bisection may ask about four leaves.
ASKED = ((0, 1, 2, 3), (0, 1), (0, 2), (2, 0))


def circles(world, tree, nbytes):
    for leaves in ASKED:
        ranks = [tree.ranks_below(f"leaf {leaf}") for leaf in leaves]
        timed(world, str(leaves), lambda ranks=ranks: slow_links._circle(world, ranks, nbytes))


def test_bisection_finds_every_degraded_uplink():
    nbytes, healthy_s = 4096, TREE.slow.seconds(4096)
    timelines = run(circles, 8, (TREE, nbytes)).timeline
    for degraded in (None, 0, 1, 2, 3):
        tree = TREE if degraded is None else TREE.degraded(f"leaf {degraded}", 0.5)
        replayed, asked = replay(timelines, tree), []

        def is_slow(leaves, replayed=replayed, asked=asked):
            asked.append(Traffic(tuple(leaves), seconds_of(replayed, str(tuple(leaves)))))
            return asked[-1].seconds > slow_links.SLOW * healthy_s

        found = Bisection(bisect(range(4), is_slow), tuple(asked), healthy_s)
        assert found.leaf == degraded
        for leaves, seconds in asked:  # two hosts share half of what they need
            bytes_s = nbytes * TREE.slow.beta * (2 if degraded in leaves else 1)
            assert seconds == pytest.approx(TREE.slow.alpha + bytes_s, rel=1e-9)
        assert len(asked) == (1 if degraded is None else 3)
        words = "no uplink" if degraded is None else f"leaf {degraded}"
        assert found.table().startswith(f"{words} is degraded: {len(asked)} measurements")


def test_in_real_time_no_pair_is_faster_than_its_links_and_a_degraded_uplink_is_slow():
    tree = TREE.degraded("leaf 2", 0.5)
    pairs = measure.pairs(8, nbytes="64 KiB", topology=tree, repetitions=1)
    assert max(pairs.bytes_per_s(*pair) for pair in pairs.seconds) <= 20e6
    found = measure.bisect_uplinks(tree, nbytes="64 KiB", repetitions=1)
    first = found.measurements[0]
    assert first.leaves == (0, 1, 2, 3)
    assert first.seconds >= 2 * 2**16 * tree.slow.beta > slow_links.SLOW * found.healthy_s


def pairs_of(speeds, topology=None):
    """Made up, of messages of 1 MB."""
    n = 1 + max(map(max, speeds))
    seconds = {pair: 1e6 / speed for pair, speed in speeds.items()}
    return Pairs(n, 1_000_000, rounds_of_pairs(n), seconds, topology)


def test_the_link_of_a_rank_that_is_slow_makes_a_dark_row_and_column():
    tree = replace(TREE, hosts=4, leaves_per_pod=1)
    pairs = pairs_of({pair: 5e6 if 3 in pair else 20e6 for pair in combinations(range(4), 2)}, tree)
    assert [pairs.of_rank(rank) for rank in range(4)] == [20e6, 20e6, 20e6, 5e6]
    assert (pairs.slowest, pairs.spread) == ((0, 3), 4)
    assert pairs.table().splitlines()[-1].split() == ["rank", "3", "5", "5", "5", ".", "5"]
    picture = pairs.draw()
    (axes,) = picture.axes
    colours = [style.tint("#0072b2", share) for share in (1, 0.25)]
    faces = [tuple(round(255 * x) for x in patch.get_facecolor()[:3]) for patch in axes.patches]
    drawn = ["#{:02x}{:02x}{:02x}".format(*face) for face in faces]
    assert [drawn.count(colour) for colour in colours] == [6, 6]
    assert [drawn[4 * 3 + column] for column in range(3)] == 3 * [colours[1]]
    assert len(axes.lines) == 2  # between the two leaves
    assert "5 (ranks 0 and 3) to 20.0 MB/s" in picture.caption


def test_pairs_that_differ_by_noise_are_all_white():
    speeds = dict.fromkeys(combinations(range(4), 2), 12.5e6)
    (axes,) = pairs_of({**speeds, (0, 1): 20e6}).draw().axes
    off_diagonal = [cell for number, cell in enumerate(axes.patches) if number % 5]
    assert {cell.get_facecolor()[:3] for cell in off_diagonal} == {(1, 1, 1)}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: measure.pairs(1), ValueError, "world_size=1"),
        (lambda: measure.pairs(4, nbytes="1 s"), ValueError, "'1 s' is no size"),
        (lambda: measure.pairs(4, topology=TREE), ValueError, "world_size=4.* 8 ranks"),
        (
            lambda: measure.bisect_uplinks(replace(TREE, hosts_per_leaf=4, leaves_per_pod=1)),
            ValueError,
            "2 leaves",
        ),
        (lambda: viz.bandwidth_map({}), ValueError, "no pair to draw"),
        (lambda: viz.bandwidth_map({(0, 16): 1.0}), ValueError, "17 ranks"),
    ],
)
def test_what_cannot_be_measured_or_drawn_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
