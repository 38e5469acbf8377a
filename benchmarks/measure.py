"""Side by side in one run: candidates alternate, and medians are compared.

Times on a shared machine wander by tens of percent within a minute. A ratio of medians of
alternating measurements does not: what slows one candidate slows its neighbour too.
"""

import os
import platform
import statistics
from collections.abc import Callable, Mapping

import torch

from labkit import Group, measure


def alternate(
    world: Group, candidates: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, float]:
    """Median seconds per call of each candidate: that of the slowest rank, each time."""
    seconds = measure.alternate(world, candidates, repetitions)
    return {
        name: statistics.median(
            world.all_reduce(torch.tensor(times, dtype=torch.float64), "max").tolist()
        )
        for name, times in seconds.items()
    }


def machine() -> str:
    """What a figure was measured on, in one line."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
