"""Four traces of the lab's GPT on one NVIDIA H200, with three different bounds.

name             the run                                                          bound by
large_model      hidden 2048, 4 layers, 32 x 512 tokens                           compute
small_model      hidden 256, 8 layers, 8 x 512 tokens                             launch
item_per_layer   the small model, with `.item()` after each layer                 launch
slow_loader      hidden 1024, 8 layers, 8 x 512 tokens; a batch takes 30 ms       input

All are four steps in bfloat16, recorded with `profile.recording` (torch 2.11) and reduced to
kernels, copies, launches, steps and memory. The files are in `traces/`; other tools read them, too.
"""

from __future__ import annotations

from pathlib import Path

from labkit.profile.kineto import read
from labkit.profile.step_trace import Trace

_FOLDER = Path(__file__).with_name("traces")
H200_NAMES = ("large_model", "small_model", "item_per_layer", "slow_loader")


def h200_trace(name: str) -> Trace:
    """Read the trace of this name. Raises ValueError, with all names, for an unknown one."""
    if name not in H200_NAMES:
        raise ValueError(f"no trace is called {name!r}; there are {', '.join(H200_NAMES)}")
    return read([_FOLDER / f"{name}.json.gz"])
