"""Worlds that a program makes and destroys itself: ranks and names mean other groups then."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import flight_recorder, hand_over, made_anew, torchs_groups
from labkit.comm.calls import wrapped_models
from labkit.comm.calls.compared import of_this_process
from labkit.comm.calls.replaced import replace
from labkit.comm.group import forget_worlds

_ending: list[dist.ProcessGroup] = []
"""Destroyed ones that a DDP had yet.

A DDP must not be the last that holds one: torch would wait for the group's threads to end with
Python's lock in its hands, for which one of these may wait in turn.
"""
FAKE = "fake"  # torch's, for trying shapes: of its ranks there is only this one


def install() -> None:
    """Wrap the functions that make and destroy process groups."""
    _wrap_init_process_group()
    _wrap_destroy_process_group()


def _let_go() -> None:
    """Of those whose DDP is no more."""
    _ending[:] = filter(wrapped_models.is_used, _ending)


def _wrap_init_process_group() -> None:
    """A world that the program makes may number the ranks in another way."""
    original = c10d.init_process_group
    if hasattr(original, "_enters_calls"):
        return

    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> None:
        _let_go()  # a store may have the port that the new one is to have
        original(*args, **kwargs)
        calls = of_this_process()
        if calls is not None and dist.get_backend() != FAKE:
            calls.renumber(c10d._get_default_store(), dist.get_rank(), dist.get_world_size())

    made._enters_calls = True  # type: ignore[attr-defined]
    replace(original, made)


def _wrap_destroy_process_group() -> None:
    """Whatever holds a process group holds its threads and open files: we let go of it too."""
    original = c10d.destroy_process_group
    if hasattr(original, "_enters_calls"):
        return

    @functools.wraps(original)
    def destroyed(group: Any = None) -> None:
        if group is not None and not isinstance(group, dist.ProcessGroup):
            return original(group)  # of a group that this rank is not in, or torch's to refuse
        gone = None if group == dist.group.WORLD else group
        name = None if gone is None else torchs_groups.title(gone.group_name)
        torchs_groups.note_moment(flight_recorder.num_enqueued())
        _let_go()
        _ending.extend(
            filter(wrapped_models.is_used, c10d._world.pg_map if gone is None else [gone])
        )
        original(group)
        if gone is None:
            forget_worlds()
        hand_over.forget(gone)
        made_anew.destroyed(name)
        calls = of_this_process()
        if calls is not None:
            calls.forget(gone)

    destroyed._enters_calls = True  # type: ignore[attr-defined]
    replace(original, destroyed)
