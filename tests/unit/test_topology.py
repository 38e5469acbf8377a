"""Link and Topology: who is where, what lies between, and which numbers are refused with what."""

import pickle
from dataclasses import replace

import pytest

from labkit import FatTree, Link, Topology, run
from labkit.launch.request import checked_topology

FAST, SLOW = Link(400e6, 20e-6), Link(1.25e9, 50e-6)
TWO_BY_FOUR = Topology(hosts=2, ranks_per_host=4, fast=FAST, slow=SLOW)
# Three ranks per host, two hosts per leaf, two leaves per pod.
TREE = FatTree(
    hosts=8, ranks_per_host=3, hosts_per_leaf=2, leaves_per_pod=2, fast=FAST, slow=Link(10)
)


def test_a_link_takes_alpha_for_a_message_and_beta_for_a_byte():
    assert SLOW.alpha == 50e-6
    assert SLOW.beta == 1 / 1.25e9
    assert SLOW.seconds(0) == 50e-6
    assert SLOW.seconds(125_000) == pytest.approx(150e-6)


def test_ranks_are_numbered_host_by_host():
    assert TWO_BY_FOUR.world_size == 8
    assert [TWO_BY_FOUR.host_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_links_are_fast_inside_a_host_and_slow_between_hosts():
    for a in range(8):
        for b in set(range(8)) - {a}:
            expected = FAST if (a < 4) == (b < 4) else SLOW
            assert TWO_BY_FOUR.link_between(a, b) is expected


def test_one_host_needs_no_slow_link_and_the_inside_of_a_host_may_have_no_link():
    assert Topology(hosts=1, ranks_per_host=2, fast=FAST).link_between(0, 1) is FAST
    topology = Topology(hosts=2, ranks_per_host=2, slow=SLOW)
    assert (topology.link_between(0, 1), topology.link_between(1, 2)) == (None, SLOW)


def test_printed_it_says_bytes_and_bits_and_who_shares_a_link():
    _, fast, slow = str(TWO_BY_FOUR).splitlines()
    assert "400 MB/s (3.2 Gbit/s), 20 us" in fast
    assert "1.25 GB/s (10 Gbit/s), 50 us" in slow and "4 ranks" in slow
    pairs = Topology(hosts=2, ranks_per_host=4, fast=FAST, slow=SLOW, slow_links_per_host=2)
    assert "2 ranks" in str(pairs).splitlines()[-1]


def test_messages_climb_to_the_first_switch_above_both_hosts():
    def betas(a, b, tree=TREE):
        return [port.beta for port in tree.path(a, b)]

    assert betas(0, 2) == 2 * [FAST.beta]
    assert betas(0, 5) == [1 / 10, 1 / 10]
    assert betas(0, 11) == [1 / 10, 1 / 20, 1 / 20, 1 / 10]
    assert betas(0, 12) == [1 / 10, 1 / 20, 1 / 40, 1 / 40, 1 / 20, 1 / 10]
    slow = replace(TREE, oversubscription=4).degraded("leaf 1", 0.5).degraded("host 5", 0.25)
    assert betas(0, 11, slow) == [1 / 10, 1 / 5, 1 / 2.5, 1 / 10]
    assert betas(15, 0, slow)[0] == 1 / 2.5
    assert len({port.number for a in (0, 12) for port in TREE.path(a, 12 - a)}) == 12
    assert max(port.number for port in TREE.path(0, 23)) == 2 * TREE.num_ports - 1


def test_a_message_has_the_bandwidth_of_the_narrowest_link_on_its_way():
    tree = TREE.degraded("leaf 1", 0.25)
    assert tree.link_between(0, 3) is TREE.slow
    assert tree.link_between(0, 11) == Link(5)
    assert TWO_BY_FOUR.degraded("rank 2", 0.5).link_between(0, 2) == Link(200e6, 20e-6)
    assert TWO_BY_FOUR.degraded("rank 2", 0.5).link_between(0, 3) is FAST


def test_the_ranks_below_a_link():
    below = [TREE.ranks_below(link) for link in ("rank 4", "host 4", "leaf 3", "pod 1")]
    assert below == [range(4, 5), range(12, 15), range(18, 24), range(12, 24)]


def test_a_link_is_degraded_once_and_others_stay_degraded():
    tree = TREE.degraded("pod 0", 0.5).degraded("leaf 1", 0.25).degraded("pod 0", 0.1)
    assert tree.degradations == (("leaf 1", 0.25), ("pod 0", 0.1))
    for fact in ("leaf 1, to 25%", "pod 0, to 10%", "uplink 20 B/s", "1:1", "uplink 40 B/s"):
        assert fact in str(tree)


@pytest.mark.parametrize("topology", [TWO_BY_FOUR, TREE.degraded("leaf 1", 0.25)])
def test_it_is_plain_data(topology):
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert eval(repr(topology)) == topology
    assert len({topology, replace(topology)}) == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Link(0), ValueError, "=0"),
        (lambda: Link("10 Gbit/s"), TypeError, "'10 Gbit/s': .*1.25e9"),
        (lambda: Link(1e9, 50), ValueError, "latency_s=50: .*50e-6"),
        (lambda: Topology(hosts=0, ranks_per_host=1, fast=FAST), ValueError, "hosts=0"),
        (
            lambda: Topology(hosts=1, ranks_per_host=10**12, fast=FAST, slow_links_per_host=7),
            ValueError,
            "ranks_per_host=1000000000000: .* 1,000,000",
        ),
        (lambda: Topology(hosts=10**4, ranks_per_host=10**4, slow=SLOW), ValueError, "100,000,000"),
        (lambda: Topology(hosts=1, ranks_per_host=2), ValueError, r"fast=Link\(...\)"),
        (lambda: Topology(hosts=1, ranks_per_host=2, slow=SLOW), ValueError, "nothing to throttle"),
        (lambda: Topology(hosts=2, ranks_per_host=1), ValueError, r"slow=Link\(...\)"),
        (lambda: Topology(hosts=1, ranks_per_host=2, fast=1e9), TypeError, "give a Link"),
        (
            lambda: Topology(hosts=1, ranks_per_host=4, fast=FAST, slow_links_per_host=3),
            ValueError,
            "slow_links_per_host=3 .* 1, 2, 4",
        ),
        (lambda: replace(TREE, hosts_per_leaf=3), ValueError, "=3: 8 hosts .* 1, 2, 4, 8"),
        (lambda: replace(TREE, leaves_per_pod=8), ValueError, "=8: 4 leaves .* 1, 2, 4"),
        (lambda: replace(TREE, hosts=1), ValueError, "hosts=1"),
        (lambda: replace(TREE, slow=None), ValueError, "8 hosts"),
        (lambda: replace(TREE, oversubscription=0), ValueError, "oversubscription=0"),
        (lambda: TREE.degraded("leaf 4", 0.5), ValueError, "'leaf 4'.* 'leaf 0' to 'leaf 3'"),
        (lambda: TREE.degraded("leaf 3", 0), ValueError, "share=0: .* 0.001"),
        (lambda: replace(TREE, fast=None).degraded("rank 3", 0.5), ValueError, "'rank 3'"),
        (lambda: TWO_BY_FOUR.host_of(8), ValueError, "rank 8 .* 0 to 7"),
        (lambda: TWO_BY_FOUR.link_between(3, 3), ValueError, "no link to itself"),
    ],
)
def test_what_fits_no_machine_is_refused_with_what_would(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"world_size": 6}, ValueError, "world_size=6, .* 2 x 4 = 8 .*hosts=2, ranks_per_host=3"),
        ({"topology": "2x4"}, TypeError, "topology='2x4'"),
    ],
)
def test_run_refuses_a_topology_that_does_not_fit(options, error, words):
    with pytest.raises(error, match=words):
        run(print, **{"world_size": 8, "topology": TWO_BY_FOUR, **options})


def test_without_a_device_the_ranks_of_a_topology_are_on_the_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    result = run(
        lambda world: world.device.type, 1, topology=Topology(hosts=1, ranks_per_host=1, fast=FAST)
    )
    assert (result.device, result.values) == ("cpu", ["cpu"])


def test_ranks_that_share_gpus_may_have_a_topology_since_gloo_carries_their_messages(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 7)
    assert checked_topology(TWO_BY_FOUR, 8, "cuda") == "cuda"


def test_nccl_is_refused_because_its_waits_do_not_wait(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    with pytest.raises(ValueError, match="nccl.*device='cpu'"):
        run(print, 8, device="cuda", topology=TWO_BY_FOUR)
