"""Side by side in one run: candidates alternate, and medians are compared.

Times on a shared machine wander by tens of percent within a minute. A ratio of medians of
alternating measurements does not: what slows one candidate slows its neighbour too.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from labkit import Group


def alternate(
    world: Group, candidates: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, float]:
    """Median seconds per call of each candidate: that of the slowest rank, each time."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repetition in range(repetitions + 1):
        for name, call in candidates.items():
            world.barrier()
            began = time.perf_counter()
            call()
            took = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
            slowest = world.all_reduce(took, "max").item()
            if repetition:  # the first only warms up
                seconds[name].append(slowest)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> str:
    """What a figure was measured on, in one line."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
