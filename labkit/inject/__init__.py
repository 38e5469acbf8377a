"""Faults that slow a run down, to be switched on in any run: what `labkit.profile` should find.

    def train(world):
        with inject.faults(world, inject.SlowRank(rank=2, share=0.2)):
            ...                     # any training loop: modules, DataLoaders

Slowness is made by waiting: on two cores, computing would slow the other ranks down too.

    slow             faults that take time, and how faults are switched on
    uneven           faults in how work and messages are cut
    network          links with a part of their bandwidth
    timed_training   layers that take a given time, and a training on them with each strategy
"""

from labkit.inject.network import NetworkFault, SlowLink, SlowUplink
from labkit.inject.slow import (
    BarrierPerLayer,
    Fault,
    ItemPerStep,
    Jitter,
    NoisyNeighbour,
    Pauses,
    Recompute,
    SlowLoader,
    SlowRank,
    faults,
)
from labkit.inject.timed_training import (
    NETWORK,
    STEP_S,
    STRATEGIES,
    TimedLayer,
    timed_run,
    timed_training,
)
from labkit.inject.uneven import (
    OneHugeBucket,
    SkewedRouter,
    TinyBuckets,
    UnbalancedStage,
    UnevenShards,
)

__all__ = [
    "NETWORK",
    "STEP_S",
    "STRATEGIES",
    "BarrierPerLayer",
    "Fault",
    "ItemPerStep",
    "Jitter",
    "NetworkFault",
    "NoisyNeighbour",
    "OneHugeBucket",
    "Pauses",
    "Recompute",
    "SkewedRouter",
    "SlowLink",
    "SlowLoader",
    "SlowRank",
    "SlowUplink",
    "TimedLayer",
    "TinyBuckets",
    "UnbalancedStage",
    "UnevenShards",
    "faults",
    "timed_run",
    "timed_training",
]
