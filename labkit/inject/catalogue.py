"""All faults as rows of one table: how to make one of a given size, and where it can be.

    row = CATALOGUE["slow rank"]
    timed_run(*row.make(2, 0.2), strategy="ddp", on_network=row.on_network)

examples/bottlenecks.py measures how often each is found, and `labkit case` hides one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labkit.inject.slow import (
    BarrierPerLayer,
    Fault,
    ItemPerStep,
    Jitter,
    NoisyNeighbour,
    Pauses,
    SlowLoader,
    SlowRank,
)
from labkit.inject.timed_training import STEP_S, STRATEGIES
from labkit.inject.uneven import (
    OneHugeBucket,
    SkewedRouter,
    SlowLink,
    SlowUplink,
    TinyBuckets,
    UnbalancedStage,
    UnevenShards,
)

_LOADING = ("ddp", "zero3", "moe")
"""Strategies in which each rank has batches of its own."""
# A link keeps so much of its bandwidth that the step is about 20% longer.
_TP_LINK, _PP_LINK = 0.07, 0.01


@dataclass(frozen=True)
class Row:
    """A fault, and the strategies in which it can be."""

    make: Callable[[int, float], tuple[Fault, ...]]
    """From a rank and a share of the step to faults; the last one is the fault of this row."""
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    on_network: bool = False
    """Messages are throttled, with the fault and without it."""
    is_uneven: bool = False
    """Layers differ from rank to rank, with the fault and without it."""


def _pauses(rank: int | None, share: float) -> Pauses:
    return Pauses(rank, share * STEP_S / 2, period_s=STEP_S / 2)


CATALOGUE = {
    "slow rank": Row(lambda rank, share: (SlowRank(rank, share),)),
    "noisy neighbour": Row(lambda rank, share: (NoisyNeighbour(rank, share),)),
    "pauses of one host": Row(lambda rank, share: (_pauses(rank, share),)),
    "pauses of all hosts": Row(lambda rank, share: (_pauses(None, share),)),
    ".item() in each step": Row(lambda rank, share: (ItemPerStep(None, share * STEP_S),)),
    "slow loader": Row(lambda rank, share: (SlowLoader(None, share * STEP_S),)),
    "one slow loader": Row(lambda rank, share: (SlowLoader(rank, share * STEP_S),), _LOADING),
    "barrier per layer": Row(
        lambda rank, share: (Jitter(share=share), BarrierPerLayer()), ("ddp",), is_uneven=True
    ),
    "uneven shards": Row(lambda rank, share: (UnevenShards(rank, share),), ("ddp", "zero3")),
    "skewed router": Row(lambda rank, share: (SkewedRouter(rank, share),), ("moe",)),
    "unbalanced stage": Row(lambda rank, share: (UnbalancedStage(rank),), ("pp",)),
    "tiny buckets": Row(lambda rank, share: (TinyBuckets(),), ("ddp",), True),
    "one huge bucket": Row(lambda rank, share: (OneHugeBucket(),), ("ddp",), True),
    "slow link, tp": Row(lambda rank, share: (SlowLink(rank, _TP_LINK),), ("tp",), True),
    # The end of a pipeline has one link: nothing shows which of its two ranks is slow.
    "slow link, pp": Row(lambda rank, share: (SlowLink(1 + rank % 2, _PP_LINK),), ("pp",), True),
    "slow uplink, tp": Row(lambda rank, share: (SlowUplink(None, _TP_LINK / 2),), ("tp",), True),
    "slow uplink, pp": Row(lambda rank, share: (SlowUplink(None, _PP_LINK / 2),), ("pp",), True),
}
