"""Times that are measured for this check: all-reduces of real ranks, over links that are paced.

The ranks and their messages are real. A message is held back for as long as a link of some latency
and bandwidth needs (labkit.Topology); the two are drawn for each check, and slow, so that they
decide what is measured and not this machine.
"""

import random
import time
from collections.abc import Sequence

import torch

from labkit.collectives import ring_all_reduce
from labkit.comm import Group
from labkit.comm.topology import Link, Topology
from labkit.grade.graders.alpha_beta_costs import RING, TREE
from labkit.grade.graders.alpha_beta_points import Point, relative_fit, worst_factor
from labkit.launch import launch

NUM_RANKS = 4
# What is shown to `fit`, and what is held back: other sizes, and another algorithm.
_SHOWN = [(RING, 2**10), (RING, 2**15), (RING, 2**18), (RING, 2**20)]
_HELD_BACK = [(RING, 2**17), (RING, 5 * 2**17), (TREE, 2**12), (TREE, 2**16), (TREE, 2**18)]
_ITEMSIZE = 4
_QUIET = 1.08  # predictions of a good fit that are off by no larger factor
_MOST_LAUNCHES = 3
_REPETITIONS = 2
_TIMEOUT_S = 60.0


class Measured:
    """All-reduces on one link, the fastest of several calls each: noise only makes them longer.

    `shown`: points for `fit`. `held_back`: the others. `noise`: the factor by which a good fit to
    those that are shown is off at worst; 1.05 on a machine that is not busy.
    """

    def __init__(self, rng: random.Random) -> None:
        """Measures, once more where the machine was busy: 1 to 3 launches, a second each."""
        link = Link(rng.uniform(25e6, 50e6), rng.uniform(2.5e-3, 4e-3))
        topology = Topology(hosts=1, ranks_per_host=NUM_RANKS, fast=link)
        plan = [*_SHOWN, *_HELD_BACK]
        seconds = [float("inf")] * len(plan)
        for _ in range(_MOST_LAUNCHES):
            ended = launch(
                _times,
                NUM_RANKS,
                [(plan,)],
                timeout=_TIMEOUT_S,
                device="cpu",
                echo=False,
                topology=topology,
            )
            seconds = [
                min(before, *map(max, zip(*by_rank, strict=True)))  # a call ends with its last rank
                for before, by_rank in zip(seconds, zip(*ended.values, strict=True), strict=True)
            ]
            points: list[Point] = [
                (algorithm, NUM_RANKS, nbytes, each)
                for (algorithm, nbytes), each in zip(plan, seconds, strict=True)
            ]
            self.shown, self.held_back = points[: len(_SHOWN)], points[len(_SHOWN) :]
            self.noise = worst_factor(*relative_fit(self.shown), points)
            if self.noise <= _QUIET:
                break


def _times(world: Group, plan: Sequence[tuple[str, int]]) -> list[list[float]]:
    """Run on every rank: seconds of each call, by line of the plan."""
    collected = []
    for algorithm, nbytes in plan:
        x = torch.ones(nbytes // _ITEMSIZE)
        times = []
        for _ in range(_REPETITIONS):
            world.barrier()
            started_s = time.perf_counter()
            total = ring_all_reduce(x, world) if algorithm == RING else _tree_all_reduce(x, world)
            times.append(time.perf_counter() - started_s)
            assert total[-1] == world.size, "a sum that is wrong takes no time worth knowing"
        collected.append(times)
    return collected


def _tree_all_reduce(x: torch.Tensor, world: Group) -> torch.Tensor:
    """Up a binomial tree to rank 0, adding, and down again: the whole of x in every step."""
    total, arriving = x.clone(), torch.empty_like(x)
    distances = [2**step for step in range((world.size - 1).bit_length())]
    for distance in distances:
        place = world.rank % (2 * distance)
        if place == distance:
            world.send(total, world.rank - distance)
        elif place == 0 and world.rank + distance < world.size:
            total += world.recv(arriving, world.rank + distance)
    for distance in reversed(distances):
        place = world.rank % (2 * distance)
        if place == 0 and world.rank + distance < world.size:
            world.send(total, world.rank + distance)
        elif place == distance:
            world.recv(total, world.rank - distance)
    return total
