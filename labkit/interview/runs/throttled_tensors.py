"""One tensor against many: rings on links that are held back to a known speed."""

from itertools import product

import torch

from labkit import Group, Link, Run, Topology
from labkit.collectives import ring_all_reduce
from labkit.interview.recorded_times import timed_run
from labkit.interview.runs.journals_of_runs import region_of, sent_bytes_in
from labkit.interview.runs.real_run import real_run, run

LINK = Link(bandwidth_bytes_per_s=20e6, latency_s=3e-3)
"""So slow that this machine has time to spare."""
NBYTES = 2**20
RANKS = 4
COUNTS = (1, 4, 16, 32)
ROUNDS = 2


def seconds(num_tensors: int) -> float:
    """To all-reduce NBYTES on RANKS ranks in so many equal tensors, one by one.

    num_tensors: one of COUNTS. Of ROUNDS the fastest: whatever else runs on the machine can only
    add to one.
    """
    rounds = spans(_checked(num_tensors))
    return min(max(end_s - start_s for start_s, end_s in by_rank) for by_rank in rounds)


@timed_run
def spans(num_tensors: int) -> list[list[list[float]]]:
    """By round and rank: when it started to do so and when it ended, from the start of the run."""
    return [
        [
            [round(time_s, 6) for time_s in region_of(timeline, f"{num_tensors} tensors, {number}")]
            for timeline in _run().timeline
        ]
        for number in range(ROUNDS)
    ]


def sent_bytes(num_tensors: int) -> int:
    """What rank 0 sends to do so, by its journal."""
    return sent_bytes_in(_run().timeline[0], f"{_checked(num_tensors)} tensors, 0")


def _checked(num_tensors: int) -> int:
    if num_tensors not in COUNTS:
        raise ValueError(f"num_tensors={num_tensors}: give one of {COUNTS}")
    return num_tensors


@real_run
def _run() -> Run:
    topology = Topology(hosts=1, ranks_per_host=RANKS, fast=LINK)
    return run(_in_turns, RANKS, topology=topology, timeout=120)


def _in_turns(world: Group) -> None:
    for number, count in product(range(ROUNDS), COUNTS):
        tensors = torch.ones(NBYTES // 4).chunk(count)
        world.barrier()
        with world.region(f"{count} tensors, {number}"):
            for tensor in tensors:
                ring_all_reduce(tensor, world)
