"""Faults that slow a run down, to be switched on in any run: what `labkit.profile` should find.

    def train(world):
        with inject.faults(world, inject.SlowRank(rank=2, share=0.2)):
            ...                     # any training loop: modules, DataLoaders

Slowness is made by waiting: on two cores, computing would slow the other ranks down too.

    slow             the faults
    timed_training   layers that take a given time, and a training on them, recorded
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
from labkit.inject.timed_training import STEP_S, timed_layer, timed_training

__all__ = [
    "STEP_S",
    "Fault",
    "NoisyNeighbour",
    "Pauses",
    "Recompute",
    "SlowLoader",
    "SlowRank",
    "timed_layer",
    "faults",
    "timed_training",
]
