"""Faults that slow a run down, to be switched on in any run: what `labkit.profile` should find.

    def train(world):
        with inject.faults(world, inject.SlowRank(rank=2, share=0.2)):
            ...                     # any training loop: modules, DataLoaders

Slowness is made by waiting: on two cores, computing would slow the other ranks down too.

    slow             faults that take time, and how faults are switched on
    uneven           faults in how work and messages are cut, and of links
    timed_training   layers that take a given time, and a training on them with each strategy
    catalogue        all faults, by name
    rl_faults        faults of reinforcement learning: no time is lost, or the wrong policy learns
"""

from labkit.inject.catalogue import CATALOGUE, Row
from labkit.inject.rl_faults import ROLLOUT_FAULTS, rollout_run, rollout_settings
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
    unequal_pipeline,
    unequal_training,
)
from labkit.inject.uneven import (
    NetworkFault,
    OneHugeBucket,
    SkewedRouter,
    SlowLink,
    SlowUplink,
    TinyBuckets,
    UnbalancedStage,
    UnevenShards,
)

__all__ = [
    "CATALOGUE",
    "NETWORK",
    "ROLLOUT_FAULTS",
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
    "Row",
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
    "rollout_run",
    "rollout_settings",
    "timed_run",
    "timed_training",
    "unequal_pipeline",
    "unequal_training",
]
