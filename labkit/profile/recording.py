"""Traces of this rank's steps by PyTorch Profiler, as `profile.read` takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from labkit.comm import Group


@contextmanager
def recording(world: Group, folder: str | Path) -> Iterator[Callable[[], None]]:
    """Record every step of a loop that calls what this yields at the end of each.

        with profile.recording(world, "traces") as step:
            for batch in loader:
                ...
                step()

    Writes folder/rank0.json and so on, also where GPUs compute. The first step, in which everything
    is new, is left out.
    """
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1_000_000)
    with torch.profiler.profile(activities=activities, schedule=plan, record_shapes=True) as found:
        yield found.step
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    found.export_chrome_trace(str(path / f"rank{world.rank}.json"))
