"""calc of two tiers against sums done by hand, and against what holds whatever the sizes."""

import pytest

from labkit import calc

# A node of 8 GPUs would be one host; here two of 4, 300 GB/s inside and 25 GB/s across.
LINKS = {"alpha": (5e-6, 30e-6), "beta": (1 / 300e9, 1 / 25e9)}


def tiers(algorithm, n, numel, rank, ranks_per_host, itemsize=4):
    more = {"itemsize": itemsize, "rank": rank, "ranks_per_host": ranks_per_host}
    return calc.collective("all_reduce", algorithm, n, itemsize * numel, **more).tier_bytes


def seconds(algorithm, nbytes, n, ranks_per_host, alpha, beta, shared=False):
    asked = calc.collective("all_reduce", algorithm, n, nbytes, ranks_per_host=ranks_per_host)
    return asked.seconds(alpha, beta, shared=shared)


def speedup(nbytes, n, ranks_per_host, **links):
    places = (nbytes, n, ranks_per_host)
    return seconds("ring", *places, **links) / seconds("hierarchical", *places, **links)


SHAPES = [(1, 1), (4, 2), (6, 2), (6, 3), (8, 4), (8, 1), (8, 8)]


def test_ten_elements_on_two_hosts_of_two():
    # Chunks 5 and 5 within the host, pieces 3 and 2 between hosts: 5 + 5, and 2 + 3.
    for rank in range(4):
        assert tiers("hierarchical", 4, 10, rank, 2) == (40, 20)


def test_seven_elements_on_three_hosts_of_two():
    # Chunks 4, 3. Rank 0 carries 4 as 2, 1, 1: all but its own 2, then all but host 1's 1.
    # Rank 3, on host 1, carries 3 as 1, 1, 1: two of them, twice.
    assert tiers("hierarchical", 6, 7, 0, 2, itemsize=1) == (7, 2 + 3)
    assert tiers("hierarchical", 6, 7, 3, 2, itemsize=1) == (7, 2 + 2)


@pytest.mark.parametrize(("n", "ranks_per_host"), SHAPES)
@pytest.mark.parametrize("numel", [0, 3, 10, 24, 1001])
def test_all_ranks_together_send_what_no_algorithm_can_save(n, ranks_per_host, numel):
    """Each host adds L tensors and hands the sum out; so do H hosts between them."""
    hosts = n // ranks_per_host
    sent = [tiers("hierarchical", n, numel, rank, ranks_per_host) for rank in range(n)]
    assert sum(each.fast for each in sent) == hosts * 2 * (ranks_per_host - 1) * 4 * numel
    assert sum(each.slow for each in sent) == 2 * (hosts - 1) * 4 * numel
    assert sent[0].total == sent[0].fast + sent[0].slow


@pytest.mark.parametrize(("n", "ranks_per_host"), SHAPES)
def test_of_a_flat_ring_one_rank_of_each_host_sends_on_a_slow_link(n, ranks_per_host):
    for rank in range(n):
        flat = tiers("ring", n, 24 * n, rank, ranks_per_host)
        crosses = ranks_per_host < n and rank % ranks_per_host == ranks_per_host - 1
        assert flat[not crosses] == 0
        assert (
            flat[crosses] == calc.collective("all_reduce", "ring", n, 96 * n, rank=rank).sent_bytes
        )


def test_steps_of_eight_ranks_on_two_hosts():
    assert calc.collective("all_reduce", "hierarchical", 8, ranks_per_host=4).tier_steps == (6, 2)
    assert calc.collective("all_reduce", "hierarchical", 8, ranks_per_host=4).steps == 8
    assert calc.collective("all_reduce", "ring", 8).steps == 14


def test_one_gigabyte_by_hand():
    # 6 * (5 us + 0.25 GB / 300 GB/s) + 2 * (30 us + 0.125 GB / 25 GB/s) = 5.03 + 10.06 ms
    tiered = seconds("hierarchical", 1e9, 8, 4, **LINKS)
    assert tiered == pytest.approx(6 * (5e-6 + 0.25 / 300) + 2 * (30e-6 + 0.125 / 25))
    # One adapter for all four: 0.5 GB goes over it in each step.
    shared = seconds("hierarchical", 1e9, 8, 4, **LINKS, shared=True)
    assert shared == pytest.approx(6 * (5e-6 + 0.25 / 300) + 2 * (30e-6 + 0.5 / 25))
    flat = seconds("ring", 1e9, 8, 4, **LINKS)
    assert flat == pytest.approx(14 * (30e-6 + 0.125 / 25))
    assert speedup(1e9, 8, 4, **LINKS) == pytest.approx(flat / tiered)
    assert speedup(1e9, 8, 4, **LINKS, shared=True) == pytest.approx(flat / shared)


def test_with_one_tier_only_it_is_a_ring():
    for ranks_per_host, tier in ((8, 0), (1, 1)):
        link = {name: pair[tier] for name, pair in LINKS.items()}
        ring = calc.collective("all_reduce", "ring", 8, 1e6).seconds(**link)
        tiered = seconds("hierarchical", 1e6, 8, ranks_per_host, **LINKS)
        assert tiered == pytest.approx(ring)
        assert seconds("ring", 1e6, 8, ranks_per_host, **LINKS) == pytest.approx(ring)
    assert seconds("hierarchical", 1e6, 1, 1, **LINKS) == 0 == seconds("ring", 1e6, 1, 1, **LINKS)


def test_where_links_are_equal_the_hierarchy_saves_steps_and_no_bytes():
    equal = {"beta": (1e-9, 1e-9)}
    assert speedup(1e9, 8, 4, alpha=(0, 0), **equal) == pytest.approx(1)
    assert speedup(0, 8, 4, alpha=(1, 1), **equal) == pytest.approx(14 / 8)
