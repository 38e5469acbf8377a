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
    # A chunk passes up to 2H slow links in 14 hops. Their bytes last longer than the fast ones'.
    flat = seconds("ring", 1e9, 8, 4, **LINKS)
    assert flat == pytest.approx(10 * 5e-6 + 4 * 30e-6 + 14 * 0.125 / 25)
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


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather", "all_reduce"])
@pytest.mark.parametrize(("n", "ranks_per_host"), SHAPES)
def test_rings_share_what_one_ring_sends(operation, n, ranks_per_host):
    """Every rank sends as much as before; in each ring another rank of a host sends it outside."""
    for rings in range(1, ranks_per_host + 1):
        sent = [
            calc.collective(
                operation,
                "ring",
                n,
                4 * 1001,
                rank=rank,
                ranks_per_host=ranks_per_host,
                rings=rings,
            )
            for rank in range(n)
        ]
        alone = [calc.collective(operation, "ring", n, 4 * 1001, rank=rank) for rank in range(n)]
        assert sum(each.sent_bytes for each in sent) == sum(each.sent_bytes for each in alone)
        leaving = sum(each.tier_bytes.slow > 0 for each in sent)
        assert leaving == (n // ranks_per_host * rings if n > ranks_per_host else 0)
        assert {each.messages for each in sent} == {rings * each.messages for each in alone}


def test_rings_over_all_adapters_are_as_fast_as_a_hierarchy_in_blocks():
    links = {"alpha": (3e-6, 8e-6), "beta": (1 / 450e9, 1 / 50e9)}

    def ms(algorithm, **options):
        asked = calc.collective("all_reduce", algorithm, 64, 1e9, ranks_per_host=8, **options)
        return 1e3 * asked.seconds(**links)

    latency = 110 * 3e-3 + 16 * 8e-3
    assert ms("ring") == pytest.approx(latency + 2 * 63 / 64 * 1e3 / 50)
    assert ms("ring", rings=8) == pytest.approx(latency + 2 * 63 / 64 * 1e3 / 50 / 8)
    assert ms("ring", rings=8) < ms("hierarchical", block_bytes=200e6) < ms("hierarchical")


def test_eight_rings_and_fast_adapters_wait_for_the_links_inside():
    """Each rank is the last of its host in one ring of four, so it sends 3/4 on its fast link."""
    asked = calc.collective("all_reduce", "ring", 8, 1e9, ranks_per_host=4, rings=4)
    assert asked.seconds((0, 0), (1 / 10e9, 1 / 1000e9)) == pytest.approx(14 / 8 * 3 / 4 / 10)
    asked = calc.collective("all_reduce", "ring", 8, 1e9, ranks_per_host=4, rings=2)
    assert asked.seconds((0, 0), (1 / 10e9, 1 / 1000e9)) == pytest.approx(14 / 8 / 10)


def test_rings_of_ranks_that_share_an_adapter_gain_nothing():
    asked = calc.collective("all_reduce", "ring", 8, 1e9, ranks_per_host=4, rings=4)
    assert asked.seconds(**LINKS, shared=True) == pytest.approx(seconds("ring", 1e9, 8, 4, **LINKS))


def simulated_ring(n, ranks_per_host, nbytes, alpha, beta, rounds=2):
    """Message by message: a link is busy with its bytes, and they arrive after its latency."""
    last = n > ranks_per_host
    hops = [(alpha[0], beta[0])] * (ranks_per_host - 1) + [(alpha[last], beta[last])]
    arrived, free = [0.0] * ranks_per_host, [0.0] * ranks_per_host  # all hosts are alike
    for _ in range(rounds * (n - 1)):
        after = [0.0] * ranks_per_host
        for place, (latency, per_byte) in enumerate(hops):
            free[place] = max(arrived[place], free[place]) + nbytes / n * per_byte
            after[(place + 1) % ranks_per_host] = free[place] + latency
        arrived = after
    return max(arrived)


@pytest.mark.parametrize(("n", "ranks_per_host"), [(64, 8), (1024, 8), (8, 4)])
@pytest.mark.parametrize("nbytes", [25e6, 1e9])
def test_a_flat_ring_takes_at_most_its_latencies_and_the_bytes_of_its_slow_links(
    n, ranks_per_host, nbytes
):
    for slow_alpha in (5e-6, 30e-6, 1e-3, 0.1):
        links = {**LINKS, "alpha": (5e-6, slow_alpha)}
        predicted = seconds("ring", nbytes, n, ranks_per_host, **links)
        simulated = simulated_ring(n, ranks_per_host, nbytes, **links)
        assert 0.5 * predicted < simulated <= predicted * (1 + 1e-9)


@pytest.mark.parametrize(
    ("operation", "rounds"), [("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", 2)]
)
@pytest.mark.parametrize("ranks_per_host", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_hosts", [1, 2, 3, 8])
def test_an_empty_flat_ring_takes_the_latencies_of_its_slowest_chunk(
    operation, rounds, num_hosts, ranks_per_host
):
    """The chunk goes `rounds` times around, except for `rounds` links beside each other."""
    n = num_hosts * ranks_per_host
    is_slow = [num_hosts > 1 and rank % ranks_per_host == ranks_per_host - 1 for rank in range(n)]
    walks = [
        sum(is_slow[(first + hop) % n] for hop in range(rounds * (n - 1))) for first in range(n)
    ]
    rings = calc.collective(operation, "ring", n, 0, ranks_per_host=ranks_per_host)
    assert rings.tier_steps == (rounds * (n - 1) - max(walks), max(walks))
    alpha, beta = (1.0, 1000.0), (0.0, 0.0)
    simulated = simulated_ring(n, ranks_per_host, 0, alpha, beta, rounds)
    assert rings.seconds(alpha, beta) == pytest.approx(simulated)


def simulated_blocks(k, within, across):
    """Fast links take the next block's first phase, and then the one before's last phase."""
    fast = slow = within
    ready = [slow := slow + across]
    for _ in range(k - 1):
        fast += within
        slow = max(fast, slow) + across
        ready.append(slow)
        fast = max(fast, ready.pop(0)) + within
    return max(fast, ready[0]) + within


@pytest.mark.parametrize("k", [1, 2, 3, 8])
@pytest.mark.parametrize("across", [0.1, 1.5, 1.9, 2.5, 7.0])
def test_a_hierarchy_in_blocks_keeps_its_busiest_link_busy(k, across):
    # 2 hosts of 2: one message within, of half a block, and two across, of a quarter each.
    asked = calc.collective("all_reduce", "hierarchical", 4, 8 * k, ranks_per_host=2, block_bytes=8)
    found = asked.seconds((0, 0), (1e-3 / 4, 1e-3 * across / 4))
    assert found == pytest.approx(1e-3 * simulated_blocks(k, 1, across))


def test_blocks_send_what_the_whole_sends():
    for rank in range(6):
        whole, blocks = (
            calc.collective(
                "all_reduce",
                "hierarchical",
                6,
                120 * 4,
                rank=rank,
                ranks_per_host=3,
                block_bytes=size,
            )
            for size in (None, 48)
        )
        assert blocks.tier_bytes == whole.tier_bytes and blocks.messages == 10 * whole.messages
