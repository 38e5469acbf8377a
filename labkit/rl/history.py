"""The record of a training by reinforcement learning: the same for every rung.

    each rank: Recorder       episodes, samples, updates, seconds in which it waits
         | history()          one gather, at the end
    every rank: History       all of it, in the order of time

    with recorder.waiting():
        group.all_reduce(...)

A rank is idle while its main thread waits for other ranks; messages on their way count as idle
time. A sample is one step of one environment. Staleness is counted in versions: the version that
an update is made on, less the one that generated its samples. Ranks of one host share a clock, and
all recorders start after a barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.train import copy_parameters

WINDOW = 100
"""Episodes whose mean return is compared with a threshold."""


class Episode(NamedTuple):
    """An episode at its end. `total` is its return: the sum of its rewards."""

    samples: int
    """Samples of all ranks at that moment."""
    seconds: float
    """Seconds since training began."""
    total: float
    rank: int


@dataclass(frozen=True, eq=False)
class History:
    """A training of all ranks. Lists by rank have one entry for each."""

    episodes: list[Episode]
    seconds: float
    num_updates: int
    samples_by_rank: list[int]
    idle_s: list[float]
    staleness: list[int]
    """An entry for each use of samples; empty in a rung in which it is always 0."""
    parameters: dict[str, Tensor] = field(repr=False)
    """At the end, on the rank that this record comes from."""

    @property
    def num_samples(self) -> int:
        """Environment steps of all ranks."""
        return sum(self.samples_by_rank)

    @property
    def samples_per_s(self) -> float:
        """Environment steps of all ranks per second."""
        return self.num_samples / self.seconds

    @property
    def updates_per_s(self) -> float:
        """Updates of the parameters per second."""
        return self.num_updates / self.seconds

    @property
    def idle_shares(self) -> list[float]:
        """The share of the time in which each rank waited, 0 to 1."""
        return [each / self.seconds for each in self.idle_s]

    def mean_returns(self, window: int = WINDOW) -> list[Episode]:
        """Return each episode from the `window`-th on, with the mean return of the last `window`.

        Empty if there were fewer episodes.
        """
        sums = [0.0, *accumulate(each.total for each in self.episodes)]
        return [
            episode._replace(total=(sums[end] - sums[end - window]) / window)
            for end, episode in enumerate(self.episodes, start=1)
            if end >= window
        ]

    def reached(self, threshold: float, window: int = WINDOW) -> Episode | None:
        """Return the first of `mean_returns` that is at least `threshold`; None: there is none."""
        means = self.mean_returns(window)
        return next((each for each in means if each.total >= threshold), None)


class Recorder:
    """Write down what one rank does. Every rank makes one, at the same point of the program."""

    def __init__(self, group: Group) -> None:
        """Wait for all ranks, and start the clock. Wire: a barrier."""
        self._group = group
        self.num_samples = self.num_updates = 0
        self.idle_s = 0.0
        self.staleness: list[int] = []
        self._episodes: list[tuple[float, int, float]] = []
        group.barrier()
        self._began_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since all ranks began."""
        return time.perf_counter() - self._began_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as idle."""
        began_s = time.perf_counter()
        yield
        self.idle_s += time.perf_counter() - began_s

    def stepped(self, num_environments: int, finished: list[float]) -> None:
        """Count a step of some environments. finished: returns of the episodes that it ended."""
        self.num_samples += num_environments
        self._episodes += [(self.seconds, self.num_samples, total) for total in finished]

    def history(self, module: nn.Module) -> History:
        """Return the record of all ranks, on each of them. Every rank calls it.

        module: whose parameters the record has. Wire: a few all-gathers.
        """
        own = [[self.seconds, self.num_updates, self.num_samples, self.idle_s]]
        seconds, num_updates, num_samples, idle_s = torch.cat(_gathered(self._group, own, 4)).T
        stale = torch.cat(_gathered(self._group, [[age] for age in self.staleness], 1))
        rows = [list(each) for each in self._episodes]
        return History(
            _in_time(_gathered(self._group, rows, 3)),
            seconds.max().item(),
            int(num_updates.max()),
            num_samples.long().tolist(),
            idle_s.tolist(),
            stale.long().flatten().tolist(),
            copy_parameters(module),
        )


def _in_time(episodes_of: list[Tensor]) -> list[Episode]:
    """Join the episodes of all ranks, (seconds, own samples, return) by rank."""
    rows = sorted((*row.tolist(), rank) for rank, own in enumerate(episodes_of) for row in own)
    samples_of = [0] * len(episodes_of)
    joined = []
    for seconds, samples, total, rank in rows:
        samples_of[rank] = int(samples)
        joined.append(Episode(sum(samples_of), seconds, total, rank))
    return joined


def _gathered(group: Group, rows: list[list[float]], width: int) -> list[Tensor]:
    """Return every rank's rows, (its number of rows, width): their numbers differ."""
    own = torch.tensor(rows, dtype=torch.float64, device=group.device).view(-1, width)
    counts = group.all_gather(torch.tensor([len(own)], device=group.device)).tolist()
    padded = own.new_zeros(max(counts), width)
    padded[: len(own)] = own
    blocks = group.all_gather(padded).view(group.size, -1, width).cpu()
    return [block[:count] for block, count in zip(blocks, counts, strict=True)]
