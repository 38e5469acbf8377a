"""Worlds that a program makes and destroys itself: ranks and names mean other groups then."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import hand_over
from labkit.comm.calls.compared import of_this_process
from labkit.comm.flight_recorder import title
from labkit.comm.group import forget_worlds


def install() -> None:
    """Wrap the functions that make and destroy process groups."""
    _wrap_init_process_group()
    _wrap_destroy_process_group()


def _wrap_init_process_group() -> None:
    """A world that the program makes may number the ranks in another way."""
    original = c10d.init_process_group
    if hasattr(original, "_enters_calls"):
        return

    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        calls = of_this_process()
        if calls is not None:
            calls.renumber(c10d._get_default_store(), dist.get_rank(), dist.get_world_size())

    made._enters_calls = True  # type: ignore[attr-defined]
    c10d.init_process_group = dist.init_process_group = made


def _wrap_destroy_process_group() -> None:
    """Whatever holds a process group holds its threads and open files: we let go of it too."""
    original = c10d.destroy_process_group
    if hasattr(original, "_enters_calls"):
        return

    @functools.wraps(original)
    def destroyed(group: dist.ProcessGroup | None = None) -> None:
        with_all_others = group is None or group == dist.group.WORLD
        process_group = group or dist.group.WORLD
        name = "" if process_group is None else title(process_group.group_name)
        original(group)
        gone = None if with_all_others else group
        if with_all_others:
            forget_worlds()
        hand_over.forget(gone)
        calls = of_this_process()
        if calls is not None:
            calls.forget(gone, name)

    destroyed._enters_calls = True  # type: ignore[attr-defined]
    c10d.destroy_process_group = dist.destroy_process_group = destroyed
