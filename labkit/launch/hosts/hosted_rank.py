"""A rank that torchrun started: two processes, the rank itself and its attendant.

    torchrun's agent, one per host
      attendant of rank 2    prints its output, watches over it, talks to the other hosts
        rank 2               connects, calls the function; may hang in C++ or die

The attendant is forked from nothing but imports, as the fork server is in engine.py: it never
computes, and a rank that dies leaves somebody who can say so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.comm import Group
from labkit.comm.hosts.connect_by_environment import connect_by_environment, set_number_of_threads
from labkit.comm.hosts.environment import Environment
from labkit.comm.hosts.roll_call import RollCall
from labkit.launch.hosts.door import Door
from labkit.launch.hosts.program import read_program
from labkit.launch.ranks.rank import RankSpec
from labkit.launch.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class HostedSpec(RankSpec):
    """Which rank of a job on several hosts a process is to be."""

    environment: Environment
    call: RollCall
    file: str
    arguments: Sequence[str]
    door: Door

    def program(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """The function in the file that every host has."""
        self.door.close()
        sys.argv = [self.file, *self.arguments]
        return read_program(self.file)

    def connected(self) -> Group:
        """The world, once the ranks of all hosts have joined it."""
        set_number_of_threads()
        journal = self.directory.of_rank(self.rank, "journal")
        world = connect_by_environment(
            self.environment, self.call, self.device, journal, self.timeout_s
        )
        self.directory.of_rank(self.rank, "clock").write_text(repr(time.monotonic()))
        return world


class FolderOfOneRank(RunDirectory):
    """The same folder, for a supervisor that has one rank and calls it 0."""

    def __init__(self, path: Path, rank: int) -> None:
        """`rank` is its number in the world."""
        self.path, self._rank = path, rank

    def of_rank(self, rank: int, kind: str) -> Path:
        """The file of the one rank."""
        return super().of_rank(self._rank + rank, kind)
