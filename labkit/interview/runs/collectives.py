"""Collectives on real ranks: bytes and messages by the journals."""

import time

import torch

from labkit import Group, Link, Run, Topology, collectives, replay
from labkit.interview.runs.real_run import real_run, run

_ALL_REDUCES = {
    "ring": collectives.ring_all_reduce,
    "tree": collectives.tree_all_reduce,
    "double_tree": collectives.double_tree_all_reduce,
    "halving_doubling": collectives.halving_doubling_all_reduce,
}


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
    """Which of two all-reduces of `num_bytes` takes less time, on links of 20 ms and 10 MB/s.

    Real ranks perform both. labkit.replay gives the time of what they did: that of the links alone.
    """
    return min((one, other), key=lambda name: seconds_on_slow_links(name, world_size, num_bytes))


def seconds_on_slow_links(algorithm: str, world_size: int, num_bytes: int) -> float:
    """Of an all-reduce of `num_bytes` of float32 there, by the order of its real messages."""
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
