"""The share of failures that lose a state: against a count of all sets, and on many hosts."""

import random
from itertools import combinations
from math import comb

import pytest

from labkit.calc.reliability import fatal_share, groups, ring


def counted(holders, k):
    states = [{host, *its} for host, its in enumerate(holders)]
    sets = [set(each) for each in combinations(range(len(holders)), k)]
    return sum(any(state <= failed for state in states) for failed in sets) / len(sets)


def test_rings_groups_and_random_placements_match_a_count_of_all_sets():
    draw = random.Random(3)
    placements = [
        ring(7, 2),
        ring(9, 3),
        ring(3, 3),
        groups(8, 2),
        groups(9, 3),
        [[]],
        [[], [2], [1]],
    ]
    placements += [[[(host + 4) % 8] for host in range(8)], [*groups(4, 2), [5], [6], [4]]]
    for n in (5, 8, 10):
        others = [[each for each in range(n) if each != host] for host in range(n)]
        placements.append([draw.sample(each, draw.randint(0, 3)) for each in others])
    for holders in placements:
        for k in range(len(holders) + 1):
            assert fatal_share(holders, k) == counted(holders, k)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_of_thousands_of_hosts_as_many_failures_as_copies_lose_one_group(m):
    n = 2048 - 2048 % m
    assert fatal_share(ring(n, m), m) == n / comb(n, m)
    assert fatal_share(groups(n, m), m) == n // m / comb(n, m)


def test_pairs_across_two_racks_survive_where_no_host_fails_with_its_partner():
    n, k = 2048, 40
    across = [[(host + n // 2) % n] for host in range(n)]
    safe = comb(n // 2, k) * 2**k / comb(n, k)
    assert fatal_share(across, k) == pytest.approx(1 - safe)


def test_a_placement_with_too_many_partial_losses_is_refused():
    draw = random.Random(0)
    holders = [draw.sample([*range(host), *range(host + 1, 2048)], 2) for host in range(2048)]
    with pytest.raises(
        ValueError, match="k=40 failures of 2048 hosts: .* the limit is 16,777,216: "
    ):
        fatal_share(holders, 40)


@pytest.mark.parametrize(
    ("holders", "k", "said"),
    [
        (ring(4, 2), 5, "k=5: 0 to 4 failed hosts"),
        (ring(4, 2), -1, "k=-1"),
        (groups(5, 2), 2, "holders=5: a holder is a host, 0 to 4"),
    ],
)
def test_failures_and_holders_that_are_no_hosts_are_refused(holders, k, said):
    with pytest.raises(ValueError, match=said):
        fatal_share(holders, k)
