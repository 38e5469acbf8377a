"""The processes of a session, from their start to their end.

    SessionRanks      starts them, sends them a command, decides whether they go on after an error
    CellSupervisor    listens to them while one cell runs on some of them
    out_of_step       matches each group's operations on all of its members

When a cell fails on one rank, another rank may have posted an all_reduce that the first never
called. The first rank's next all_reduce would meet it, and both would get wrong numbers. So a
session goes on after a failure only if every posted operation has met its other side.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
import weakref
from collections.abc import Collection, Sequence

from labkit.comm import Operation, Timeline, Topology
from labkit.comm.journal import JournalFollower, read_journal
from labkit.comm.operation import ranks_named
from labkit.doctor.verdict import Stage
from labkit.interrupts import uninterrupted
from labkit.launch import failure, payload
from labkit.launch.errors import Mismatch, RunError, as_interrupted
from labkit.launch.examine import Evidence
from labkit.launch.listen import StallWatch, listen_to_the_end
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import RankSpec
from labkit.launch.rank_process import (
    Rank,
    RankOutput,
    RankProcess,
    end_ranks,
    start_rank,
)
from labkit.launch.request import LONGEST_TIMEOUT_S
from labkit.launch.session.in_rank import Command, session_main
from labkit.launch.supervise import Supervisor

_INTERRUPT_WAITS_S = (0.1, 0.25)


class SessionRanks:
    """Ranks that wait for commands, until one of them is lost or `end` is called.

    They also end with this object, with the interpreter, and with the driver's process.
    """

    def __init__(
        self,
        world_size: int,
        device: str,
        timeout_s: float,
        echo: bool,
        topology: Topology | None = None,
    ) -> None:
        """Return when all ranks have met; raise what `labkit.run` raises where they do not."""
        self.device = device
        self.processes: list[RankProcess] = []
        self.has_ended = False
        self._echo = echo
        with uninterrupted():  # there is no folder without its finalizer
            self.directory = RunDirectory()
            self._finalizer = weakref.finalize(
                self, _end, self.processes, self.directory, os.getpid()
            )
        # It must run before multiprocessing's atexit function, which waits for every child. Last
        # in, first out: weakref's own may have been registered long ago.
        atexit.register(self._finalizer)
        self._history = History(self.directory, world_size)
        try:
            self._start(world_size, timeout_s, topology)
        except BaseException as error:
            self.end()
            if isinstance(error, KeyboardInterrupt):
                raise as_interrupted(error) from None
            raise

    def _start(self, world_size: int, timeout_s: float, topology: Topology | None) -> None:
        deadline_s = time.monotonic() + timeout_s
        payload.write(self.directory.payload, session_main, [()])
        for number in range(world_size):
            # The driver keeps the time of each cell: the backend must not end a wait before it.
            spec = RankSpec(
                number, world_size, self.device, self.directory, LONGEST_TIMEOUT_S, topology
            )
            with uninterrupted():
                self.processes.append(start_rank(spec, session_main))
        ranks = [
            Rank(process, RankOutput(process.rank, process.output, self._echo))
            for process in self.processes
        ]
        supervisor = Supervisor(ranks, self.directory)
        listen_to_the_end(supervisor, deadline_s, timeout_s, StallWatch(supervisor, None))

    def perform(
        self, command: Command, on: Collection[int], timeout_s: float, stall_s: float | None
    ) -> CellSupervisor:
        """Run a command on the ranks `on`; returns when all of them have answered.

        Raises as `labkit.run` does. The error's message says whether the variables are kept; if
        not, `has_ended` is true.
        """
        self._check_alive()
        supervisor = self._supervisor(on)
        try:
            deadline_s = supervisor.ready_s + timeout_s
            with uninterrupted():
                for number in on:
                    with contextlib.suppress(OSError):  # a rank that just died is noticed below
                        self.processes[number].control.send(command)
            watch = StallWatch(supervisor, stall_s)
            listen_to_the_end(supervisor, deadline_s, timeout_s, watch, echo=self._echo)
        except BaseException as error:
            with uninterrupted(quietly=True):
                self._after(error, supervisor)
            if isinstance(error, KeyboardInterrupt):
                raise as_interrupted(error) from None
            raise
        finally:
            with uninterrupted():
                supervisor.finish_outputs()
        return supervisor

    def _supervisor(self, on: Collection[int]) -> CellSupervisor:
        return CellSupervisor(self.processes, self.directory, on, self._history, self._echo)

    @property
    def dead(self) -> list[int]:
        """Ranks whose process is gone."""
        return [rank.rank for rank in self.processes if not rank.process.is_alive()]

    def described(self, variables: Sequence[Sequence[str]]) -> list[str]:
        """A line per rank: its process, and the names of its variables."""
        return [
            f"  rank {rank}  process {process.process.pid}  "
            f"variables: {', '.join(variables[rank]) or 'none yet'}"
            for rank, process in enumerate(self.processes)
        ]

    def _check_alive(self) -> None:
        supervisor = self._supervisor(())
        if supervisor.look_for_deaths():
            supervisor.evidence.examine()
            supervisor.finish_outputs()
            error = failure.rank_error(supervisor)
            self.end()
            _add(error, f"It was idle then. This cell was not run, and {self._variables_lost}")
            raise error

    def _after(self, error: BaseException, supervisor: CellSupervisor) -> None:
        """Keep the ranks if all of them can go on, else end them. The error says which."""
        reason = self._reason_to_end(error, supervisor)
        if isinstance(error, RunError):
            error.timeline = [since(timeline, 0) for timeline in error.timeline]
        supervisor.finish_outputs()
        if reason:
            self.end()
            _add(error, f"{reason[0].upper()}{reason[1:]}, so {self._variables_lost}")
        else:
            _add(error, "All ranks returned: the session goes on, with its variables.")

    def _reason_to_end(self, error: BaseException, supervisor: CellSupervisor) -> str:
        if not _has_death(supervisor):
            _interrupt_active(supervisor)
        if _has_death(supervisor):
            return "a rank has died"
        if isinstance(error, Mismatch):
            return "the ranks did not mean the same"
        if not supervisor.is_over:
            left = [number for number, rank in enumerate(supervisor.ranks) if rank.is_active]
            return f"{ranks_named(left)} could not be called back"
        supervisor.evidence.read_journals()
        reason = out_of_step(supervisor.evidence.timeline, supervisor.of_this_cell())
        return reason and f"the ranks are out of step: {reason}"

    @property
    def _variables_lost(self) -> str:
        number = len(self.processes)
        new = "a new rank" if number == 1 else f"{number} new ranks"
        return f"the session has ended: the next cell starts {new}, without the variables."

    def end(self) -> None:
        """End the ranks, and remove their files."""
        self.has_ended = True
        with uninterrupted():
            self._finalizer()
        atexit.unregister(self._finalizer)


def _end(processes: list[RankProcess], directory: RunDirectory, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork of the driver
        end_ranks(processes, at_once=True)
        directory.remove()


def _has_death(supervisor: CellSupervisor) -> bool:
    return any(rank.stage is Stage.DIED for rank in supervisor.ranks)


def _interrupt_active(supervisor: CellSupervisor) -> None:
    """Interrupt ranks that still run, and wait a moment for them. It has no effect inside C++.

    It interrupts twice, since the first one has no effect on a rank that has not started the cell.
    A cell that is interrupted already is not interrupted again.
    """
    for patience_s in _INTERRUPT_WAITS_S:
        for rank in supervisor.ranks:
            if rank.is_active:
                rank.process.signal(signal.SIGINT)
        deadline_s = time.monotonic() + patience_s
        while not supervisor.is_over and time.monotonic() < deadline_s:
            supervisor.listen(deadline_s - time.monotonic())
        supervisor.evidence.read_journals()
        active = [view for view in supervisor.evidence.views if not view.stage.is_over]
        if all(view.waits_in for view in active):
            return  # all wait for something that interrupted ranks will not send


def _add(error: BaseException, sentence: str) -> None:
    """Let the error's message end with one more paragraph."""
    error.args = (f"{error}\n\n{sentence}".strip(),)


class History:
    """The journals of a session's ranks, from cell to cell.

    Each record is read once, not again for every long cell.
    """

    def __init__(self, directory: RunDirectory, world_size: int) -> None:
        """Begin with ranks that have done nothing yet."""
        ranks = range(world_size)
        self.journals = [JournalFollower(directory.of_rank(rank, "journal")) for rank in ranks]
        self.seen = [0] * world_size
        """The number of records of ended cells in each journal."""


class CellSupervisor(Supervisor):
    """A Supervisor for a cell: ranks that take part are RUNNING from the start, the others IDLE.

    The journals go back to the first cell of the session: a cell may wait for an operation that an
    earlier one has posted. `of_this_cell` is the part of them that began with the cell.
    """

    nothing_follows = False

    def __init__(
        self,
        processes: Sequence[RankProcess],
        directory: RunDirectory,
        on: Collection[int],
        history: History,
        echo: bool,
    ) -> None:
        """on: the ranks that take part. history: of the session's journals; kept up to date."""
        self._seen = history.seen
        ranks = [
            Rank(
                process,
                RankOutput(process.rank, process.output, echo),
                Stage.RUNNING if process.rank in on else Stage.IDLE,
            )
            for process in processes
        ]
        super().__init__(ranks, directory)
        self.evidence = Evidence(ranks, directory, history.journals)
        self.ready_s = time.monotonic()

    def listen(self, timeout_s: float) -> bool:
        """Listen as for a run, and notice the deaths of idle ranks."""
        has_reported = super().listen(timeout_s)
        return self.look_for_deaths() or has_reported

    def look_for_deaths(self) -> bool:
        """Return whether an idle rank has died since the last call."""
        dead = [
            rank
            for rank in self.ranks
            if rank.stage is Stage.IDLE and not rank.process.process.is_alive()
        ]
        for rank in dead:
            rank.stage, rank.ended_s = Stage.DIED, time.monotonic()
        return bool(dead)

    def read_cell(self) -> list[Timeline]:
        """Return `of_this_cell` without reading earlier cells. Call it once, at the cell's end.

        Only the doctor needs the earlier cells, and most cells end before it is asked. A session
        may have 100,000 operations, and each costs 5 us to read and 1 KB to keep.
        """
        found = []
        for number, first in enumerate(self._seen):
            timeline = read_journal(self.directory.of_rank(number, "journal"), first)
            self._seen[number] += len(timeline.operations) + len(timeline.regions)
            found.append(since(timeline, self.ready_s))
        return found

    def of_this_cell(self) -> list[Timeline]:
        """Return each rank's operations since the cell was sent, in seconds of time.monotonic()."""
        return [since(timeline, self.ready_s) for timeline in self.evidence.timeline]

    def finish_outputs(self) -> None:
        """Show what was printed last."""
        for rank in self.ranks:
            rank.output.read()
            rank.output.finish()


def since(timeline: Timeline, start_s: float) -> Timeline:
    """The part of a timeline that began at `start_s` or later."""
    return Timeline(
        [operation for operation in timeline.operations if operation.posted_s >= start_s],
        [region for region in timeline.regions if region.start_s >= start_s],
        timeline.start_s,
        timeline.end_s,
    )


def out_of_step(session: Sequence[Timeline], cell: Sequence[Timeline]) -> str:
    """Return why the ranks cannot go on together, in words; empty if they can.

    session: the journals from its beginning, by rank. cell: the part of the cell that failed.
    """
    for rank, timeline in enumerate(cell):
        for operation in timeline.operations:
            if operation.failed:
                return f"{operation.name} was cut short on rank {rank}"
    if not any(timeline.operations for timeline in cell):
        return ""
    return _uneven_collectives(session) or _unmatched_messages(session)


def _uneven_collectives(session: Sequence[Timeline]) -> str:
    last: dict[tuple[str, tuple[int, ...]], dict[int, Operation]] = {}
    for rank, timeline in enumerate(session):
        for operation in timeline.operations:
            if operation.kind not in ("send", "recv"):
                group = last.setdefault((operation.group_name, operation.group), {})
                group[rank] = operation
    for (_, members), by_rank in last.items():
        ahead, operation = max(by_rank.items(), key=lambda item: item[1].sequence)
        for rank in members:
            if rank not in by_rank or by_rank[rank].sequence < operation.sequence:
                return f"rank {ahead} has called {operation.name}, and rank {rank} has not"
    return ""


def _unmatched_messages(session: Sequence[Timeline]) -> str:
    last: dict[tuple[str, str, int, int], Operation] = {}
    for rank, timeline in enumerate(session):
        for operation in timeline.operations:
            if operation.kind in ("send", "recv") and operation.peer is not None:
                last[operation.group_name, operation.kind, rank, operation.peer] = operation
    for (group, kind, rank, peer), operation in last.items():
        other = last.get((group, "recv" if kind == "send" else "send", peer, rank))
        if other is None or other.sequence < operation.sequence:
            return f"rank {rank} has posted {operation.name}, and rank {peer} not its side of it"
    return ""
