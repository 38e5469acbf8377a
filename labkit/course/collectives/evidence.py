"""Measure collectives on real ranks: bytes, messages and seconds, from their journals.

seconds_of_tensors() times one tensor against many, on links that are throttled to a known speed.

The fat tree is calculated and not run: 64 nodes with 8 GPUs and 8 adapters of 50 GB/s each, 4 nodes
per leaf switch, 4 leaves per pod. The uplink of one leaf has a quarter of its bandwidth.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

import torch

from labkit import FatTree, Group, Link, Run, Topology, collectives, replay
from labkit.collectives import (
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from labkit.interview.real_run import real_run, region_of, run, sent_bytes_in
from labkit.interview.recorded_times import timed_run
from labkit.measure.slow_links import bisect, rounds_of_pairs

_ALL_REDUCES = {
    "ring": collectives.ring_all_reduce,
    "tree": collectives.tree_all_reduce,
    "double_tree": collectives.double_tree_all_reduce,
    "halving_doubling": collectives.halving_doubling_all_reduce,
}
ALGORITHMS = MappingProxyType(
    {
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
        "double_tree": double_tree_all_reduce,
        "halving_doubling": halving_doubling_all_reduce,
    }
)
NUMEL = 840  # float32 elements, a multiple of 2 to 8
LINK = Link(bandwidth_bytes_per_s=20e6, latency_s=3e-3)
"""So slow that this machine has time to spare."""
NBYTES = 2**20
RANKS = 4
COUNTS = (1, 4, 16, 32)
ROUNDS = 2
HEALTHY = FatTree(
    hosts=64,
    ranks_per_host=8,
    slow_links_per_host=8,
    hosts_per_leaf=4,
    leaves_per_pod=4,
    fast=Link(450e9),
    slow=Link(50e9),
)
LEAF = "leaf 5"
DEGRADED = HEALTHY.degraded(LEAF, 0.25)


def ring_sent_bytes(world_size: int, num_bytes: int, num_tensors: int = 1) -> int:
    """Bytes that rank 0 sends to all-reduce `num_bytes` of float32 on a ring, in equal tensors."""
    return _all_reduced("ring", world_size, num_bytes, num_tensors).traffic[0].sent_bytes


def ring_messages(world_size: int, num_bytes: int, num_tensors: int = 1) -> int:
    """Messages that rank 0 sends to all-reduce `num_bytes` of float32 on a ring."""
    return all_reduce_messages("ring", world_size, num_bytes, num_tensors)


def all_reduce_messages(
    algorithm: str, world_size: int, num_bytes: int, num_tensors: int = 1
) -> int:
    """Messages of the rank that sends most, in an all-reduce of `num_bytes` of float32.

    algorithm: "ring", "tree", "double_tree" or "halving_doubling".
    """
    result = _all_reduced(algorithm, world_size, num_bytes, num_tensors)
    return max(traffic.by_operation["send"].count for traffic in result.traffic)


def most_sent_bytes(algorithm: str, world_size: int, num_bytes: int) -> int:
    """Bytes of the rank that sends most, in an all-reduce of `num_bytes` of float32."""
    result = _all_reduced(algorithm, world_size, num_bytes, 1)
    return max(traffic.sent_bytes for traffic in result.traffic)


def crossing_bytes(algorithm: str, world_size: int, ranks_per_host: int, num_bytes: int) -> int:
    """Bytes that leave the first host in an all-reduce of `num_bytes` of float32.

    algorithm: "ring", over all ranks in order, or "hierarchical". Hosts are numbers here: rank //
    ranks_per_host. What one rank sends to a rank of another host crosses.
    """
    result = _over_hosts(algorithm, world_size, ranks_per_host, num_bytes)
    return sum(
        operation.sent_bytes
        for rank in range(ranks_per_host)
        for operation in result.timeline[rank].operations
        if operation.kind == "send" and (operation.peer or 0) // ranks_per_host > 0
    )


def crossing_bytes_in_turns(world_size: int, num_hosts: int, num_bytes: int) -> int:
    """Bytes that leave the first host where ranks were dealt out: rank r is on host r % num_hosts.

    The all-reduce of `num_bytes` of float32 is a ring in the order of the ranks.
    """
    result = _over_hosts("ring", world_size, 1, num_bytes)
    return sum(
        operation.sent_bytes
        for rank in range(0, world_size, num_hosts)
        for operation in result.timeline[rank].operations
        if operation.kind == "send" and (operation.peer or 0) % num_hosts > 0
    )


def all_to_all_sent_bytes(world_size: int, num_bytes: int) -> int:
    """Bytes that rank 0 sends in a pairwise all-to-all of `num_bytes`, in equal shares."""
    return _dealt(world_size, num_bytes).traffic[0].sent_bytes


def all_to_all_messages(world_size: int, num_bytes: int) -> int:
    """Messages that rank 0 sends in that."""
    return _dealt(world_size, num_bytes).traffic[0].by_operation["send"].count


def halves_sent_bytes(world_size: int, num_bytes: int) -> tuple[int, int]:
    """Bytes that rank 0 sends in a ring reduce-scatter of `num_bytes`, and in the all-gather."""
    sent = _halves(world_size, num_bytes).traffic[0].sent_bytes
    first = _first_half(world_size, num_bytes).traffic[0].sent_bytes
    return first, sent - first


def bytes_between_halves(world_size: int, num_bytes: int) -> int:
    """Bytes of the sum that rank 0 holds after the reduce-scatter, before the all-gather."""
    return _first_half(world_size, num_bytes).values[0]


def barrier_payload_bytes(world_size: int) -> int:
    """Bytes that all ranks together hand to a barrier."""
    traffic = _barrier(world_size).traffic
    return sum(each.by_operation["barrier"].payload_bytes for each in traffic)


def ranks_that_left_the_barrier_early(world_size: int) -> int:
    """Ranks that left a barrier before the last had come, who is 50 ms late."""
    barriers = [
        next(each for each in timeline.operations if each.kind == "barrier")
        for timeline in _barrier(world_size).timeline
    ]
    last_came = max(each.posted_s for each in barriers)
    return sum((each.done_s or 0.0) < last_came for each in barriers)


def faster_on_slow_links(one: str, other: str, world_size: int, num_bytes: int) -> str:
    """Return the faster of two all-reduces of `num_bytes` on links of 20 ms and 10 MB/s.

    Real ranks perform both, and labkit.replay gives the time that their messages take on the links.
    """
    return min((one, other), key=lambda name: seconds_on_slow_links(name, world_size, num_bytes))


def seconds_on_slow_links(algorithm: str, world_size: int, num_bytes: int) -> float:
    """Return the seconds of an all-reduce of float32 on those links, by its real messages."""
    link = Link(bandwidth_bytes_per_s=10e6, latency_s=20e-3)
    topology = Topology(hosts=1, ranks_per_host=world_size, fast=link)
    timelines = _all_reduced(algorithm, world_size, num_bytes, 1).timeline
    return max(each.end_s for each in replay(timelines, topology))


@real_run
def _all_reduced(algorithm: str, world_size: int, num_bytes: int, num_tensors: int) -> Run:
    numel = num_bytes // 4 // num_tensors
    return run(_all_reduce_each, world_size, (algorithm, numel, num_tensors))


def _all_reduce_each(world: Group, algorithm: str, numel: int, num_tensors: int) -> None:
    for _ in range(num_tensors):
        _ALL_REDUCES[algorithm](torch.ones(numel), world)


@real_run
def _over_hosts(algorithm: str, world_size: int, ranks_per_host: int, num_bytes: int) -> Run:
    return run(_all_reduce_over_hosts, world_size, (algorithm, ranks_per_host, num_bytes // 4))


def _all_reduce_over_hosts(world: Group, algorithm: str, ranks_per_host: int, numel: int) -> None:
    if algorithm == "ring":
        collectives.ring_all_reduce(torch.ones(numel), world)
    else:
        fast, slow = collectives.two_tiers(world, ranks_per_host)
        collectives.hierarchical_all_reduce(torch.ones(numel), fast, slow)


@real_run
def _dealt(world_size: int, num_bytes: int) -> Run:
    return run(_all_to_all, world_size, (num_bytes // 4,))


def _all_to_all(world: Group, numel: int) -> None:
    collectives.pairwise_all_to_all(torch.ones(numel), group=world)


@real_run
def _first_half(world_size: int, num_bytes: int) -> Run:
    return run(_reduce_scatter, world_size, (num_bytes // 4,))


def _reduce_scatter(world: Group, numel: int) -> int:
    return collectives.ring_reduce_scatter(torch.ones(numel), world).nbytes


@real_run
def _halves(world_size: int, num_bytes: int) -> Run:
    return run(_reduce_scatter_all_gather, world_size, (num_bytes // 4,))


def _reduce_scatter_all_gather(world: Group, numel: int) -> None:
    chunk = collectives.ring_reduce_scatter(torch.ones(numel), world)
    total = collectives.ring_all_gather(chunk, numel, world)
    assert torch.equal(total, torch.full((numel,), float(world.size)))


@real_run
def _barrier(world_size: int) -> Run:
    return run(_meet, world_size)


def _meet(world: Group) -> None:
    if world.rank == world.size - 1:
        with world.region("late"):
            time.sleep(0.05)
    world.barrier()


def sends(algorithm: str, world_size: int) -> int:
    """Messages that the busiest rank sends in one all-reduce."""
    return max(count for count, _ in _by_rank(algorithm, world_size))


def tensors_sent(algorithm: str, world_size: int) -> float:
    """Bytes that the busiest rank sends in one all-reduce, over the bytes of the tensor."""
    return max(nbytes for _, nbytes in _by_rank(algorithm, world_size)) / (4 * NUMEL)


@real_run
def _by_rank(algorithm: str, world_size: int) -> tuple[tuple[int, int], ...]:
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: give one of {', '.join(ALGORITHMS)}")
    result = run(_all_reduce, world_size, args=(algorithm,))
    found: list[Mapping] = [traffic.by_operation for traffic in result.traffic]
    return tuple((each["send"].count, each["send"].sent_bytes) for each in found)


def _all_reduce(world: Group, algorithm: str) -> None:
    x = torch.arange(NUMEL, dtype=torch.float32) + world.rank
    total = ALGORITHMS[algorithm](x, world)
    ranks = world.size * (world.size - 1) / 2
    if not torch.equal(total, world.size * torch.arange(NUMEL) + ranks):
        raise RuntimeError(f"{algorithm} made a wrong sum on rank {world.rank}")


def seconds_of_tensors(num_tensors: int) -> float:
    """To all-reduce NBYTES on RANKS ranks in so many equal tensors, one by one.

    num_tensors: one of COUNTS. Of ROUNDS the fastest: whatever else runs on the machine can only
    add to one.
    """
    rounds = spans_of_tensors(_checked(num_tensors))
    return min(max(end_s - start_s for start_s, end_s in by_rank) for by_rank in rounds)


@timed_run
def spans_of_tensors(num_tensors: int) -> list[list[list[float]]]:
    """By round and rank: when it started to do so and when it ended, from the start of the run."""
    return [
        [
            [round(time_s, 6) for time_s in region_of(timeline, f"{num_tensors} tensors, {number}")]
            for timeline in _run().timeline
        ]
        for number in range(ROUNDS)
    ]


def sent_bytes_of_tensors(num_tensors: int) -> int:
    """Return the bytes that rank 0 sends for it, by its journal."""
    return sent_bytes_in(_run().timeline[0], f"{_checked(num_tensors)} tensors, 0")


def _checked(num_tensors: int) -> int:
    if num_tensors not in COUNTS:
        raise ValueError(f"num_tensors={num_tensors}: give one of {COUNTS}")
    return num_tensors


@real_run
def _run() -> Run:
    topology = Topology(hosts=1, ranks_per_host=RANKS, fast=LINK)
    return run(_in_turns, RANKS, topology=topology, timeout=600)


def _in_turns(world: Group) -> None:
    for number, count in product(range(ROUNDS), COUNTS):
        tensors = torch.ones(NBYTES // 4).chunk(count)
        world.barrier()
        with world.region(f"{count} tensors, {number}"):
            for tensor in tensors:
                ring_all_reduce(tensor, world)


def uplink(tree: str = "degraded") -> float:
    """Bytes per second that leave this leaf at most, in the "degraded" or the "healthy" tree."""
    num_gpus = len(DEGRADED.ranks_below(LEAF))
    return num_gpus * reached(num_gpus, tree)


def reached(num_gpus: int, tree: str = "degraded") -> float:
    """Bytes per second of each GPU, where so many below this leaf send to the next leaf at once.

    They share every port on their ways equally.
    """
    network = {"degraded": DEGRADED, "healthy": HEALTHY}[tree]
    below = network.ranks_below(LEAF)
    paths = [network.path(gpu, gpu + len(below)) for gpu in below[:num_gpus]]
    load = Counter(port.number for path in paths for port in path)
    return min(1 / (load[port.number] * port.beta) for path in paths for port in path)


def gpus_at_full_speed() -> int:
    """Return how many GPUs below this leaf can send at once as fast as one alone."""
    counts = range(1, len(DEGRADED.ranks_below(LEAF)) + 1)
    return max(count for count in counts if math.isclose(reached(count), reached(1)))


def measurements(num_leaves: int) -> int:
    """Return the most measurements that `measure.bisect_uplinks` takes for any leaf."""
    return max(_measurements(num_leaves, leaf) for leaf in range(num_leaves))


def pairs_of_nodes() -> tuple[int, int]:
    """Return the number of pairs of nodes, and of rounds of pairs that share no node."""
    rounds = rounds_of_pairs(HEALTHY.hosts)
    return sum(map(len, rounds)), len(rounds)


def without_collision(num_flows: int, num_uplinks: int) -> float:
    """Probability that a hash puts every flow on an uplink of its own."""
    return math.perm(num_uplinks, num_flows) / num_uplinks**num_flows


def _measurements(num_leaves: int, degraded: int) -> int:
    asked: list[Sequence[int]] = []

    def is_slow(leaves: Sequence[int]) -> bool:
        asked.append(leaves)
        return degraded in leaves

    if bisect(range(num_leaves), is_slow) != degraded:
        raise RuntimeError(f"bisection over {num_leaves} leaves did not find leaf {degraded}")
    return len(asked)
