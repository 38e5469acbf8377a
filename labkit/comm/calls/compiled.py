"""torch.compile is kept out of the lab's own code, and finds torch's collectives in our wrappers.

    dist.all_reduce(x)      in compiled code: torch puts a functional collective in its place
    world.all_reduce(x)     ends a graph, and is carried out as it is; dist.broadcast(x) likewise

Dynamo would trace the journals and tables otherwise, and fail in them. What it puts into a graph is
no call, and is compared by place (functional_collectives.py).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

_COMM = "labkit.comm"


def install() -> None:
    """Once torch's functions are wrapped. Where Dynamo is not imported yet, which takes a second,
    as soon as torch.compile is called.
    """
    remaps = functional.traceable_collective_remaps
    for original, in_graphs in list(remaps.items()):
        remaps[getattr(c10d, original.__name__, original)] = in_graphs
    if "torch._dynamo" in sys.modules:
        _keep_out()
    elif not hasattr(torch.compile, "_keeps_out"):
        torch.compile = _kept_out(torch.compile)


def _kept_out(original: Any) -> Any:
    @functools.wraps(original)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        _keep_out()
        return original(*args, **kwargs)

    compiled._keeps_out = True  # type: ignore[attr-defined]
    return compiled


@functools.cache
def _keep_out() -> None:
    from torch._dynamo import trace_rules

    trace_rules.add(_COMM)
