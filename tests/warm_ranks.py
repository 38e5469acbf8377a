"""Ranks that stay for the next run: a rank needs 50 ms of computing to start, and tests thousands.

A run whose ranks are all in step at its end, also if they have failed, leaves them to the next run
of its size in the same file. Any other run ends them, and so do open groups by the dozen.
"""

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d as c10d

from labkit.grade.harness import Closed
from labkit.launch import payload
from labkit.launch.rank import draw_own_random_numbers
from labkit.launch.session.ranks import SessionRanks, out_of_step
from labkit.launch.session.session import cell_run
from tests.rehearsal import rehearse

_MOST_GROUPS = 12
_START_S = 120  # the first of a process start the fork server, too, perhaps on a busy machine
_runs = importlib.import_module("labkit.launch.run")
_launch = _runs.launch


@dataclasses.dataclass(repr=False)
class Value:
    """A rank's result, and the number of groups that this process has open."""

    value: Any
    num_groups: int


@dataclasses.dataclass(frozen=True)
class Call:
    """A command to ranks of a session: call the function of a payload, as a rank of `run` does."""

    path: Path
    rehearses: bool
    """True if operations obey nccl's rules: see rehearsal.py."""

    def run(self, namespace: dict[str, Any]) -> Value:
        """On the rank, which draws random numbers as a new one does."""
        world = namespace["world"]
        if self.rehearses:
            rehearse(world)
        fn, args = payload.read(self.path, world.rank)
        # The last run may have left a learner's file, and the count of modules in labels.
        sys.modules.pop("submission", None)
        if replica := sys.modules.get("labkit.data_parallel.replica"):
            replica._NUM_WRAPPED.clear()
        draw_own_random_numbers()
        dtype, modules = torch.get_default_dtype(), dict(sys.modules)
        try:
            return Value(fn(world, *args), len(c10d._world.pg_map))
        finally:
            torch.set_default_dtype(dtype)
            _open(modules)


def _open(modules: dict[str, Any]) -> None:
    """Put back what a grader has closed of `modules`, for the run of another exercise."""
    for name in [name for name, each in sys.modules.items() if isinstance(each, Closed)]:
        parent, _, attribute = name.rpartition(".")
        del sys.modules[name]
        if name in modules:
            sys.modules[name] = modules[name]
            setattr(modules[parent], attribute, modules[name])
        elif parent in modules:
            vars(modules[parent]).pop(attribute, None)


class WarmRanks:
    """By world size. `launch` takes the place of `labkit.launch.launch`."""

    def __init__(self, rehearses: bool = False) -> None:
        self._rehearses = rehearses
        self._by_size: dict[int, SessionRanks] = {}

    def launch(self, fn, world_size, args_by_rank, *, timeout=600, stall=None, echo=True, **others):
        """A run on ranks that may have run others; with `others` on ranks of its own."""
        if any(value not in (None, "local", "cpu") for value in others.values()):
            return _launch(
                fn, world_size, args_by_rank, timeout=timeout, stall=stall, echo=echo, **others
            )
        # A machine with a GPU tests the same as others, but for what asks for one.
        device = _runs._checked(fn, world_size, args_by_rank, timeout, "cpu", None)
        ranks = self._by_size.pop(world_size, None)
        if ranks is None or ranks.dead:
            ranks = SessionRanks(world_size, device, _START_S, False, None)
        try:
            path = ranks.directory.payload
            payload.write(path, fn, args_by_rank)
            result = cell_run(
                ranks.perform(Call(path, self._rehearses), range(world_size), timeout, stall),
                device,
                None,
            )
        except BaseException:
            if not ranks.has_ended:  # all have returned, and are in step
                self._by_size[world_size] = ranks
            raise
        num_groups = max(value.num_groups for value in result.values)
        if num_groups > _MOST_GROUPS or out_of_step(result.timeline, result.timeline):
            ranks.end()
        else:
            self._by_size[world_size] = ranks
        result.values = [value.value for value in result.values]
        return result

    def end(self) -> None:
        """No rank is left."""
        while self._by_size:
            self._by_size.popitem()[1].end()


@pytest.fixture(autouse=True, scope="module")
def runs_on_warm_ranks(request):
    """For all tests of a file, where its folder's conftest imports this."""
    rehearses = request.config.getoption("--rehearse-nccl")
    ranks = WarmRanks(rehearses or "rehearsal" in request.module.__name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_runs, "launch", ranks.launch)
        yield
    ranks.end()
