"""One tensor against many: rings on links that are held back to a known speed."""

from itertools import product

import torch

from labkit import Group, Link, Topology
from labkit.collectives import ring_all_reduce
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

    num_tensors: one of COUNTS.
    """
    return _measured(num_tensors)[0]


def sent_bytes(num_tensors: int) -> int:
    """What rank 0 sends to do so, by its journal."""
    return _measured(num_tensors)[1]


def _measured(num_tensors: int) -> tuple[float, int]:
    if num_tensors not in COUNTS:
        raise ValueError(f"num_tensors={num_tensors}: give one of {COUNTS}")
    return _by_count()[num_tensors]


@real_run
def _by_count() -> dict[int, tuple[float, int]]:
    """Number of tensors -> seconds of the slowest rank, bytes of rank 0; all in one run.

    Of ROUNDS the fastest: whatever else runs on the machine can only add to one.
    """
    topology = Topology(hosts=1, ranks_per_host=RANKS, fast=LINK)
    result = run(_in_turns, RANKS, topology=topology, timeout=120)
    found = {}
    for count in COUNTS:
        took = []
        for name in (f"{count} tensors, round {number}" for number in range(ROUNDS)):
            spans = [region_of(timeline, name) for timeline in result.timeline]
            took.append(max(end_s - start_s for start_s, end_s in spans))
        found[count] = (min(took), sent_bytes_in(result.timeline[0], name))
    return found


def _in_turns(world: Group) -> None:
    for number, count in product(range(ROUNDS), COUNTS):
        tensors = torch.ones(NBYTES // 4).chunk(count)
        world.barrier()
        with world.region(f"{count} tensors, round {number}"):
            for tensor in tensors:
                ring_all_reduce(tensor, world)
