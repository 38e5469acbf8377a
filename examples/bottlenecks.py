"""Why is it slow: what labkit.profile says about real GPU traces and about runs with a known fault.

    python examples/bottlenecks.py            5 runs of each fault, 50 healthy ones: half an hour
    python examples/bottlenecks.py --quick    one run of each fault, 5 healthy ones
    python examples/bottlenecks.py --jobs 4   4 runs at once: for a machine with 16 cores

- the breakdown of GPU traces beside what HTA 0.5 reports: within 3%, overlap within 0.5 points
- four traces of a GPU, and what bounds them
- faults of 20% of a step on 4 ranks, by strategy: is the first finding the fault and its rank?
- the run without the fault, as the replay predicts it, beside runs that really have none
- how small a fault may be

Exits with 1 where a GPU trace differs, or where the terms of a step do not add up to it. The rest
are measurements: they are printed and decide nothing.
"""

import argparse
import multiprocessing
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from labkit import inject, profile
from labkit.inject import (
    STEP_S,
    BarrierPerLayer,
    Fault,
    ItemPerStep,
    Jitter,
    NoisyNeighbour,
    OneHugeBucket,
    Pauses,
    Recompute,
    SkewedRouter,
    SlowLink,
    SlowLoader,
    SlowRank,
    SlowUplink,
    TinyBuckets,
    UnbalancedStage,
    UnevenShards,
)
from labkit.profile import Trace

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
# What HTA 0.5 reports: idle, compute, non-compute and total in us, overlap in percent.
HTA = {
    "sampled_rank-0": (321378, 106252, 172428, 600058, 11.81),
    "sampled_rank-1": (328671, 135548, 136455, 600674, 20.05),
    "two_gpus_rank-0": (338781, 75169, 21636, 435586, 14.31),
}
H200 = {
    "h200_large_model": "compute",
    "h200_small_model": "launch",
    "h200_item_per_layer": "launch",
    "h200_slow_loader": "input",
}
WORLD_SIZE = 4
STRATEGIES = tuple(inject.STRATEGIES)
Make = Callable[[int, int, float], tuple[Fault, ...]]
"""From a rank, a seed and a share of the step to faults; the last one is to be found."""
# Of its bandwidth a link keeps what makes the step about 20% longer.
LINK = {"tp": 0.07, "pp": 0.01}


@dataclass(frozen=True)
class Row:
    """A fault, and the strategies in which it can be."""

    make: Make
    strategies: tuple[str, ...] = STRATEGIES
    on_network: bool = False
    """Without the fault, too, messages are throttled."""
    is_uneven: bool = False
    """Without the fault, too, layers differ from rank to rank."""


ROWS = {
    "slow rank": Row(lambda r, seed, share: (SlowRank(r, share),)),
    "noisy neighbour": Row(lambda r, seed, share: (NoisyNeighbour(r, share, seed=seed),)),
    "pauses of one host": Row(lambda r, seed, share: (pauses(r, share),)),
    "pauses of all hosts": Row(lambda r, seed, share: (pauses(None, share),)),
    ".item() in each step": Row(lambda r, seed, share: (ItemPerStep(None, share * STEP_S),)),
    "slow loader": Row(lambda r, seed, share: (SlowLoader(None, share * STEP_S),)),
    "one slow loader": Row(
        lambda r, seed, share: (SlowLoader(r, share * STEP_S),), ("ddp", "zero3", "moe")
    ),
    "barrier per layer": Row(
        lambda r, seed, share: (Jitter(share=share), BarrierPerLayer()), ("ddp",), is_uneven=True
    ),
    "recomputation": Row(lambda r, seed, share: (Recompute(),)),
    "uneven shards": Row(lambda r, seed, share: (UnevenShards(r, share),), ("ddp", "zero3")),
    "skewed router": Row(lambda r, seed, share: (SkewedRouter(r, share),), ("moe",)),
    "unbalanced stage": Row(lambda r, seed, share: (UnbalancedStage(r),), ("pp",)),
    "tiny buckets": Row(lambda r, seed, share: (TinyBuckets(),), ("ddp",), on_network=True),
    "one huge bucket": Row(lambda r, seed, share: (OneHugeBucket(),), ("ddp",), on_network=True),
    "slow link, tp": Row(lambda r, seed, share: (SlowLink(r, LINK["tp"]),), ("tp",), True),
    # The end of a pipeline has one link: which of its two ranks is slow cannot be told.
    "slow link, pp": Row(lambda r, seed, share: (SlowLink(1 + r % 2, LINK["pp"]),), ("pp",), True),
    "slow uplink, tp": Row(lambda r, seed, share: (SlowUplink(None, LINK["tp"] / 2),), ("tp",), True),
    "slow uplink, pp": Row(lambda r, seed, share: (SlowUplink(None, LINK["pp"] / 2),), ("pp",), True),
}
SIZES = (0.025, 0.05, 0.1, 0.2, 0.4)


def pauses(rank: int | None, share: float) -> Pauses:
    """Two pauses in a step."""
    return Pauses(rank, share * STEP_S / 2, period_s=STEP_S / 2)


@dataclass(frozen=True)
class Outcome:
    """What the diagnosis says of one run."""

    name: str
    strategy: str
    place: str
    """Whether the fault is the first finding, the second, or neither: right, second, wrong."""
    seconds: float
    predicted_s: float
    """Without the fault; nan where it is not found."""
    adds_up: bool
    healthy: tuple[str, bool, bool]
    """The strategy, and what else the run without the fault has: see Row."""


@dataclass(frozen=True)
class Job:
    """A run to be made. No name: without a fault."""

    name: str
    strategy: str
    seed: int
    share: float = 0.2
    num_steps: int = 5
    like: str = ""
    """Without a fault: on the network of this row."""


def outcome(job: Job) -> Outcome:
    """Make the run and look at it."""
    row = ROWS[job.name or job.like]
    rank = random.Random(f"{job.name} {job.strategy} {job.seed}").randrange(WORLD_SIZE)
    faults = row.make(rank, job.seed, job.share)
    if not job.name:
        faults = faults[:-1] if row.is_uneven else ()
    trace = inject.timed_run(
        *faults, strategy=job.strategy, on_network=row.on_network, num_steps=job.num_steps
    )
    found = profile.diagnose(trace)
    steps = len(trace.ranks[0].steps)
    named = [(each.cause, each.rank) for each in found if each.is_fault]
    place, gain_s = "wrong", float("nan")
    if not job.name:
        place = "wrong" if named else "right"
    elif isinstance(faults[-1], Recompute):
        place = "wrong" if named else "compared"
    else:
        looked_for = faults[-1].cause, faults[-1].rank
        places = dict(zip(named, ("right", "second"), strict=False))
        place = places.get(looked_for, "wrong")
        gains = [each.gain_s for each in found if (each.cause, each.rank) == looked_for]
        gain_s = gains[0] if gains else gain_s
    healthy = (job.strategy, row.on_network, row.is_uneven)
    return Outcome(
        job.name,
        job.strategy,
        place,
        trace.seconds / steps,
        (trace.seconds - gain_s) / steps,
        adds_up(trace),
        healthy,
    )


def adds_up(trace: Trace) -> bool:
    """Whether each step's terms are the step."""
    steps = [step for steps in profile.breakdown(trace).values() for step in steps]
    return all(abs(sum(step.seconds.values()) - step.total) < 1e-9 for step in steps)
