"""Session: ranks that keep their variables from one cell to the next.

    with labkit.Session(2) as session:
        session.execute("x = torch.full((3,), float(rank))")
        session.execute("world.all_reduce(x)").values

In a notebook: `%load_ext labkit`, then `%%ranks 2` at the top of a cell. What an error does to the
variables is the last paragraph of its message:

    a rank raised, Stop or timeout in Python,
      and every rank came back, in step            the session goes on, variables kept
    a deadlock, a rank blocked in C++, a death     ranks ended; the next cell starts new ones
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Self

import cloudpickle
import torch

from labkit.comm import Topology
from labkit.comm.words import ranks_named
from labkit.launch import devices, pace_notes, sources
from labkit.launch.request import (
    checked_device,
    checked_ranks,
    checked_stall,
    checked_timeout,
    checked_topology,
)
from labkit.launch.session.command import Cell, Command, Names, Push, Take
from labkit.launch.session.ranks import SessionRanks
from labkit.launch.session.result import CellRun, Unsent, cell_run

_START_TIMEOUT_S = 30.0
_STALL_S = 5.0


class Session:
    """`world_size` ranks that run one piece of source text after another.

    Each has a namespace of its own with `world` (its Group), `rank`, `world_size`, `torch` and
    `labkit`. `last`: the CellRun of the last cell that ended well, or None.
    """

    def __init__(
        self,
        world_size: int,
        *,
        device: str | None = None,
        echo: bool = True,
        topology: Topology | None = None,
    ) -> None:
        """Start the ranks. echo: show what ranks print as it comes.

        device, topology: as for `labkit.run`. Raises ValueError for ranks that cannot be started.
        """
        self.world_size, self.topology = world_size, topology
        self._all = range(world_size)
        device = checked_topology(topology, world_size, device)
        self.device = checked_device(world_size, _START_TIMEOUT_S, device)
        self.last: CellRun | None = None
        self._echo = echo
        self._num_cells = 0
        self._is_closed = False
        if echo and (note := devices.note(self.device, world_size, torch.cuda.device_count())):
            print(note, flush=True)
        self._is_free = threading.Lock()
        self._ranks = self._started()

    def _started(self) -> SessionRanks:
        return SessionRanks(
            self.world_size, self.device, _START_TIMEOUT_S, self._echo, self.topology
        )

    def execute(
        self,
        source: str | Cell,
        ranks: Iterable[int] | None = None,
        *,
        timeout: float = 30,
        stall: float | None = _STALL_S,
    ) -> CellRun:
        """Run `source` on `ranks` (None: on all) and return what it left behind there.

        `values` are those of a last line that is an expression, by rank. timeout: seconds until a
        cell that does not end is ended. stall: seconds without progress after which ranks that all
        wait count as deadlocked; None: only what can be proved.

        Raises SyntaxError before anything is sent, ValueError for ranks that are not there, and
        otherwise what `labkit.run` raises.
        """
        timeout_s = checked_timeout(timeout)
        on = checked_ranks(ranks, self.world_size)
        cell = source if isinstance(source, Cell) else Cell.of(source, self._num_cells + 1)
        sources.remember({cell.file: cell.lines})  # for the stacks in a verdict
        result = self._perform(cell, on, timeout_s, checked_stall(stall), is_cell=True)
        self.last = result
        if self._echo:
            pace_notes.show(result)
        return result

    def _perform(
        self,
        command: Command,
        on: Collection[int],
        timeout_s: float,
        stall_s: float | None = _STALL_S,
        is_cell: bool = False,
    ) -> CellRun:
        self._check_open()
        if self._ranks.has_ended:
            self._ranks = self._started()
            if self._echo:
                print(f"{self._new_ranks()}: the variables of earlier cells are gone.", flush=True)
        self._num_cells += is_cell
        if not self._is_free.acquire(blocking=False):
            raise RuntimeError(
                "this session is running a cell for another thread; wait for it, or make a session "
                "for each thread"
            )
        try:
            supervisor = self._ranks.perform(command, on, timeout_s, stall_s)
            return cell_run(supervisor, self.device, self.topology)
        finally:
            self._is_free.release()

    def push(self, name: str, value: Any) -> None:
        """Give every rank a copy of `value` as the variable `name`.

        Raises TypeError for a value that cannot be pickled.
        """
        try:
            data = cloudpickle.dumps(value)
        except Exception as error:
            raise TypeError(f"{name} cannot travel to the ranks: {error}") from error
        self._perform(Push(_identifier(name), data), self._all, _START_TIMEOUT_S)

    def pull(self, name: str) -> list[Any]:
        """The variable `name` of every rank, by rank.

        Raises NameError where a rank has none, and TypeError where a value cannot travel.
        """
        found = self._perform(Take(_identifier(name)), self._all, _START_TIMEOUT_S).values
        for rank, value in enumerate(found):
            if isinstance(value, Unsent):
                raise TypeError(f"{name} of rank {rank} cannot travel: {value!r}")
        if missing := [rank for rank, (is_there, _) in enumerate(found) if not is_there]:
            raise NameError(f"there is no variable {name!r} on {ranks_named(missing)}")
        return [value for _, value in found]

    def restart(self) -> None:
        """End the ranks and start new ones: the way to forget all variables."""
        self._check_open()
        self._ranks.end()
        self._ranks = self._started()

    def close(self) -> None:
        """End the ranks for good. A closed session runs nothing more."""
        self._is_closed = True
        self._ranks.end()

    def status(self) -> str:
        """Which processes the ranks are, and which variables cells have made there."""
        if self._is_closed:
            return "This session is closed; its ranks have ended."
        next_starts = f"The next cell starts {self._new_ranks()}."
        if not self._ranks.has_ended and (dead := self._ranks.dead):
            self._ranks.end()
            return f"The process of {ranks_named(dead)} is gone. {next_starts}"
        if self._ranks.has_ended:
            return f"The ranks have ended, and their variables are gone. {next_starts}"
        variables = self._perform(Names(), self._all, _START_TIMEOUT_S).values
        cells = "1 cell" if self._num_cells == 1 else f"{self._num_cells} cells"
        head = f"{self.world_size} ranks on {self.device}, {cells} so far."
        return "\n".join([head, *self._ranks.described(variables)])

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"this session is closed; make another: Session({self.world_size})")

    def _new_ranks(self) -> str:
        return "1 new rank" if self.world_size == 1 else f"{self.world_size} new ranks"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _identifier(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a variable")
    return name
