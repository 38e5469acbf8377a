"""Faults that slow a run down, to be switched on in any run: what `labkit.profile` should find.

    def train(world):
        with inject.faults(world, inject.SlowRank(rank=2, share=0.2)):
            ...                     # any training loop: modules, DataLoaders

Slowness is made by waiting: on two cores, computing would slow the other ranks down too.

    timed    a layer that takes a given time: four ranks of them run at once on two cores
    slow     the faults
"""

from labkit.inject.slow import (
    Fault,
    NoisyNeighbour,
    Pauses,
    Recompute,
    SlowLoader,
    SlowRank,
    faults,
)
from labkit.inject.timed import TimedLayer

__all__ = [
    "Fault",
    "NoisyNeighbour",
    "Pauses",
    "Recompute",
    "SlowLoader",
    "SlowRank",
    "TimedLayer",
    "faults",
]
