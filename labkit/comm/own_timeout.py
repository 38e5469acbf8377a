"""Process groups whose waits may end by a timeout of the program's own, and go on from there.

Such a wait proves nothing: `new_group(timeout=timedelta(seconds=5))` and an `except RuntimeError`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_of_the_run: timedelta | None = None


def begin() -> None:
    """The default group is the lab's own, and its timeout none of the program's."""
    global _of_the_run
    _of_the_run = _timeout(options_of(dist.group.WORLD))


def options_of(process_group: object) -> Any:
    """Where a process group's timeout stands, which may be changed; None where nobody knows."""
    try:
        return process_group._get_backend(torch.device("cpu")).options  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # another backend, or another torch
        return None


def is_chosen(options: Any) -> bool:
    """Whether these hold a timeout of the program's own, shorter than all that are given."""
    ours = _timeout(options)
    if ours is None or _of_the_run is None:
        return False
    return ours < min(_of_the_run, c10d.default_pg_timeout)


def _timeout(options: Any) -> timedelta | None:
    return getattr(options, "_timeout", None)
