"""labkit: learn distributed training by running it.

    import torch, labkit

    def hello(world):
        return world.all_reduce(torch.tensor(world.rank))

    labkit.run(hello, world_size=4).values      # [tensor(6), tensor(6), tensor(6), tensor(6)]

Needs only torch and cloudpickle; what draws, grades or talks to a notebook loads when it is used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from labkit.comm import Group, Link, Topology
from labkit.launch import (
    Deadlock,
    Mismatch,
    RankError,
    Run,
    RunError,
    RunTimeout,
    Session,
    attempt,
    run,
    save_payload,
    warm_up,
)

if TYPE_CHECKING:
    from labkit import measure
    from labkit.grade import check, hint, reset, solution

if "ipykernel" in sys.modules:
    # In a notebook a run will follow: while the reader reads on, the server gets ready for it.
    warm_up()

_GRADING = ("check", "hint", "reset", "solution")

__all__ = [
    "Deadlock",
    "Group",
    "Link",
    "Mismatch",
    "RankError",
    "Run",
    "RunError",
    "RunTimeout",
    "Session",
    "Topology",
    "attempt",
    "check",
    "hint",
    "measure",
    "reset",
    "run",
    "save_payload",
    "solution",
]


def __getattr__(name: str) -> Any:
    if name in _GRADING:
        return getattr(importlib.import_module("labkit.grade"), name)
    if name == "measure":
        return importlib.import_module("labkit.measure")
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext labkit` calls: makes the magics `%%ranks` and `%ranks`."""
    from labkit.notebook import ranks_magic

    ranks_magic.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext labkit` calls: ends the session that the magics have started."""
    from labkit.notebook import ranks_magic

    ranks_magic.unload()


def __dir__() -> list[str]:
    return sorted({*globals(), *_GRADING, "measure"})
