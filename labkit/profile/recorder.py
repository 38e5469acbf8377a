"""Record the steps of a loop with PyTorch Profiler, one file per rank, for `read`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from labkit.comm import Group


@contextmanager
def recording(
    world: Group, folder: str | Path, *, memory: bool = False
) -> Iterator[Callable[[], None]]:
    """Record every step of a loop that calls what this yields at the end of each.

        with profile.recording(world, "traces") as step:
            for batch in loader:
                ...
                step()

    Writes folder/rank0.json and so on, also where GPUs compute. The first step, in which everything
    is new, is left out.

    memory: record allocations as well, and operators of the calling thread only. Without it, those
    of all threads: torch's profiler sees either other threads or memory.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each rank prints that it began
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1_000_000)
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=not memory)
    with torch.profiler.profile(
        activities=activities,
        schedule=plan,
        record_shapes=True,
        profile_memory=memory,
        acc_events=True,
        experimental_config=threads,
    ) as found:
        yield found.step
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    found.export_chrome_trace(str(path / f"rank{world.rank}.json"))
