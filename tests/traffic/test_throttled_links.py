"""Times on throttled links against the formulas of calc, on real ranks.

Real ranks send over throttled links, and never take less than the formula says. How much more is
the machine's: benchmarks/links.py prints it. What they did is replayed on the same links
by a virtual clock, and takes what the formula says.
"""

import time

import pytest
import torch

from labkit import FatTree, Link, Topology, calc, replay, run
from labkit.collectives import (
    hierarchical_all_reduce,
    pairwise_all_to_all,
    ring_all_reduce,
    two_tiers,
)
from tests.replayed import seconds_of, timed

EXACT = 1e-9
LINK = Link(10e6, 5e-3)
FOUR_RANKS = Topology(hosts=1, ranks_per_host=4, fast=LINK)
# Messages between hosts take five times as long as those inside one.
TIERS = {"fast": Link(20e6, 0.5e-3), "slow": Link(4e6, 1e-3)}
ALPHAS, BETAS = zip(*((link.alpha, link.beta) for link in TIERS.values()), strict=True)


def check_seconds(program, topology, *args, of, less=0.0, work_s=None):
    """For each region by name in `of`: does it take that long, by the links alone?

    less: by which share it may take less than `of` says. Real ranks never take less than that.
    """
    timelines = run(program, topology.world_size, args, topology=topology, timeout=600).timeline
    replayed = replay(timelines, topology, work_s)
    for name, seconds in of.items():
        least_s = (1 - less - EXACT) * seconds
        assert least_s <= seconds_of(replayed, name) <= (1 + EXACT) * seconds, name
        assert seconds_of(timelines, name) >= least_s, name
    return timelines, replayed


def messages(world, sizes):
    """Rank 0 to rank 1."""
    for nbytes in sizes:
        x = torch.zeros(nbytes, dtype=torch.uint8)
        move = (lambda x=x: world.send(x, 1)) if world.rank == 0 else lambda x=x: world.recv(x, 0)
        timed(world, f"{nbytes} bytes", move)


def test_a_message_takes_alpha_and_beta_and_leaves_before_it_arrives():
    link = Link(10e6, 40e-3)
    topology = Topology(hosts=2, ranks_per_host=1, slow=link)
    sizes = (0, 300_000, 600_000)
    received = {f"{nbytes} bytes": link.seconds(nbytes) for nbytes in sizes}
    timelines, replayed = check_seconds(messages, topology, sizes, of=received)
    for nbytes in sizes:
        sent_s = seconds_of(replayed[:1], f"{nbytes} bytes")
        assert sent_s == pytest.approx(nbytes * link.beta, rel=EXACT, abs=EXACT)
        assert seconds_of(timelines[:1], f"{nbytes} bytes") >= (1 - EXACT) * sent_s


def patterns(world):
    """Ways in which messages of 50 ms share ports, or do not."""
    rank, others = world.rank, [peer for peer in range(world.size) if peer != world.rank]
    x, buffers = torch.ones(125_000), torch.empty(world.size, 125_000)

    def exchange(sends, receives):
        pending = [world.irecv(buffers[source], source) for source in receives]
        pending += [world.isend(x, target) for target in sends]
        for each in pending:
            each.wait()

    def gathers():
        exchange([] if rank == 0 else [0], others if rank == 0 else [])

    def scatters():
        exchange(others if rank == 0 else [], [] if rank == 0 else [0])

    partner = rank ^ 1
    timed(world, "one way", lambda: exchange(*(([partner], []), ([], [partner]))[rank % 2]))
    timed(world, "both ways", lambda: exchange([partner], [partner]))
    timed(world, "gather", gathers)
    timed(world, "scatter", scatters)


def test_messages_share_the_ports_that_they_pass():
    nbytes, link = 500_000, LINK
    # One after the other, but for the latency: they are on their way at the same time.
    in_turn = calc.collective("gather", "direct", 4, 4 * nbytes).seconds(0, link.beta) + link.alpha
    check_seconds(
        patterns,
        FOUR_RANKS,
        of={
            "one way": link.seconds(nbytes),
            "both ways": link.seconds(nbytes),
            "gather": in_turn,
            "scatter": in_turn,
        },
    )


def collectives(world, numel):
    x = torch.ones(numel)
    timed(world, "ring", lambda: ring_all_reduce(x, world))
    timed(world, "all-to-all", lambda: pairwise_all_to_all(x, world))


def test_collectives_take_what_calc_says():
    link = (LINK.alpha, LINK.beta)
    check_seconds(
        collectives,
        FOUR_RANKS,
        400_000,
        of={
            "ring": calc.collective("all_reduce", "ring", 4, 1_600_000).seconds(*link),
            "all-to-all": calc.collective("all_to_all", "pairwise", 4, 1_600_000).seconds(*link),
        },
    )


def across(world, senders):
    """The first ranks of host 0 send to host 1 at once."""
    x = torch.ones(50_000)

    def step():
        if world.rank < senders:
            world.send(x, world.rank + 4)
        elif 4 <= world.rank < senders + 4:
            world.recv(torch.empty_like(x), world.rank - 4)

    timed(world, "across", step)


def test_a_degraded_uplink_is_slow_only_when_many_hosts_send_across_it():
    tree = FatTree(hosts=8, hosts_per_leaf=4, leaves_per_pod=2, slow=LINK).degraded("leaf 0", 0.25)
    check_seconds(across, tree, 1, of={"across": LINK.seconds(200_000)})
    check_seconds(across, tree, 4, of={"across": LINK.alpha + 4 * 200_000 * LINK.beta})


def all_reduces(world, numel, names):
    x = torch.ones(numel)
    fast, slow = two_tiers(world, ranks_per_host=4)
    steps = {
        "ring": lambda: ring_all_reduce(x, world),
        "hierarchical": lambda: hierarchical_all_reduce(x, fast, slow),
        "ring of 8 elements": lambda: ring_all_reduce(x[:8], world),
    }
    for name in names:
        timed(world, name, steps[name])


@pytest.mark.parametrize(
    ("slow_links_per_host", "numel", "measured"),
    [
        (1, 400_000, ["ring", "hierarchical", "ring of 8 elements"]),
        # In a flat ring one message at a time leaves a host: it takes as long as above.
        (4, 800_000, ["hierarchical"]),
    ],
)
def test_hierarchical_beats_the_flat_ring_by_the_factor_of_the_model(
    slow_links_per_host, numel, measured
):
    topology = Topology(hosts=2, ranks_per_host=4, slow_links_per_host=slow_links_per_host, **TIERS)
    is_shared = slow_links_per_host == 1
    seconds = {
        name: calc.collective("all_reduce", name, 8, 4 * numel, ranks_per_host=4).seconds(
            ALPHAS, BETAS, shared=is_shared
        )
        for name in ("ring", "hierarchical")
    }
    flat = calc.collective("all_reduce", "ring", 8, 4 * 8, ranks_per_host=4)
    latencies = flat.seconds(ALPHAS, BETAS, shared=is_shared)
    seconds["ring of 8 elements"] = latencies
    assert seconds["ring"] / seconds["hierarchical"] > (1.3 if is_shared else 3)
    check_seconds(
        all_reduces,
        topology,
        numel,
        measured,
        of={name: seconds[name] for name in measured},
        # All latencies but one are hidden behind the bytes of a slow link.
        less=(latencies - ALPHAS[1]) / seconds["ring"],
    )


WORK_S = {"100 ms": 0.1, "20 ms": 0.02}


def in_groups_and_meanwhile(world):
    """A message of 50 ms inside groups, and one beside 100 ms of work."""
    x, in_host = torch.ones(50_000), torch.ones(250_000)
    pair, column = world.split(world.rank // 4), world.split(world.rank % 4)

    def first_to_last(group, x):
        if group.rank == 0:
            group.send(x, group.size - 1)
        elif group.rank == group.size - 1:
            group.recv(torch.empty_like(x), 0)

    def beside_work(name):
        pending = None
        if world.rank == 0:
            pending = world.isend(x, 4)
        elif world.rank == 4:
            pending = world.irecv(torch.empty_like(x), 0)
        with world.region(name):
            time.sleep(WORK_S[name])
        if pending is not None:
            pending.wait()

    timed(world, "host", lambda: first_to_last(pair, in_host))
    timed(world, "columns", lambda: first_to_last(column, x))
    timed(world, "longer work", lambda: beside_work("100 ms"))
    timed(world, "shorter work", lambda: beside_work("20 ms"))


def test_groups_have_the_links_of_their_ranks_and_messages_travel_beside_work():
    topology = Topology(hosts=2, ranks_per_host=4, slow_links_per_host=2, **TIERS)
    transfer_s, latency_s = 200_000 * topology.slow.beta, topology.slow.alpha
    check_seconds(
        in_groups_and_meanwhile,
        topology,
        of={
            "host": topology.fast.seconds(1_000_000),
            "columns": 2 * transfer_s + latency_s,  # four columns, two to a link
            "longer work": 0.1,
            "shorter work": transfer_s + latency_s,
        },
        work_s=lambda rank, region: WORK_S.get(region.name, 0.0),
    )
