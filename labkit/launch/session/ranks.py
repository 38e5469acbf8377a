"""The processes of a session, from their start to their end."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
import weakref
from collections.abc import Collection, Sequence

from labkit.comm import Topology
from labkit.comm.words import ranks_named
from labkit.doctor.stage import Stage
from labkit.launch import payload
from labkit.launch.diagnosis import failure
from labkit.launch.driver.engine import RankProcess, end_ranks, start_rank
from labkit.launch.driver.rank_state import Rank
from labkit.launch.driver.stall import StallWatch
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.driver.uninterrupted import uninterrupted
from labkit.launch.driver.watch import listen_to_the_end
from labkit.launch.errors import Mismatch, RunError
from labkit.launch.ranks.output import RankOutput
from labkit.launch.ranks.rank import RankSpec
from labkit.launch.request import LONGEST_TIMEOUT_S
from labkit.launch.run_directory import RunDirectory
from labkit.launch.session.command import Command
from labkit.launch.session.rank import session_main
from labkit.launch.session.step import out_of_step
from labkit.launch.session.supervisor import CellSupervisor, History, since

_COME_BACK_S = (0.1, 0.25)


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
        self._directory = RunDirectory()
        self._history = History(self._directory, world_size)
        # Before multiprocessing's own atexit function, which waits for every child: last in,
        # first out. weakref's alone may have been registered long ago.
        self._finalizer = weakref.finalize(self, _end, self.processes, self._directory, os.getpid())
        atexit.register(self._finalizer)
        try:
            self._start(world_size, timeout_s, topology)
        except BaseException:
            self.end()
            raise

    def _start(self, world_size: int, timeout_s: float, topology: Topology | None) -> None:
        deadline_s = time.monotonic() + timeout_s
        payload.write(self._directory.payload, session_main, [()])
        for number in range(world_size):
            # The driver keeps the time of each cell: the backend must not end a wait before it.
            spec = RankSpec(
                number, world_size, self.device, self._directory, LONGEST_TIMEOUT_S, topology
            )
            with uninterrupted():
                self.processes.append(start_rank(spec, session_main))
        ranks = [
            Rank(process, RankOutput(process.rank, process.output, self._echo))
            for process in self.processes
        ]
        supervisor = Supervisor(ranks, self._directory)
        listen_to_the_end(supervisor, deadline_s, timeout_s, StallWatch(supervisor, None))

    def perform(
        self, command: Command, on: Collection[int], timeout_s: float, stall_s: float | None
    ) -> CellSupervisor:
        """Run a command on the ranks `on`; returns when all of them have answered.

        Raises as `labkit.run` does. What the error means for the variables is in its message; the
        ranks have ended when `has_ended` is true.
        """
        self._check_alive()
        supervisor = self._supervisor(on)
        try:
            deadline_s = supervisor.ready_s + timeout_s
            with uninterrupted():
                for number in on:
                    with contextlib.suppress(OSError):  # of one that just died: heard below
                        self.processes[number].control.send(command)
            watch = StallWatch(supervisor, stall_s)
            listen_to_the_end(supervisor, deadline_s, timeout_s, watch, echo=self._echo)
        except BaseException as error:
            with uninterrupted(quietly=True):
                self._after(error, supervisor)
            raise
        finally:
            with uninterrupted():
                supervisor.finish_outputs()
        return supervisor

    def _supervisor(self, on: Collection[int]) -> CellSupervisor:
        return CellSupervisor(self.processes, self._directory, on, self._history, self._echo)

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
            _add(error, f"It was idle then. This cell was not run, and {self._all_is_lost}")
            raise error

    def _after(self, error: BaseException, supervisor: CellSupervisor) -> None:
        """Keep the ranks if all of them can go on from here, end them if not, and say which."""
        reason = self._reason_to_end(error, supervisor)
        if isinstance(error, RunError):
            error.timeline = [since(timeline, 0) for timeline in error.timeline]
        supervisor.finish_outputs()
        if reason:
            self.end()
            _add(error, f"{reason[0].upper()}{reason[1:]}, so {self._all_is_lost}")
        else:
            _add(error, "All ranks came back: the session goes on, with its variables.")

    def _reason_to_end(self, error: BaseException, supervisor: CellSupervisor) -> str:
        if not _someone_died(supervisor):
            _call_back(supervisor)
        if _someone_died(supervisor):
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
    def _all_is_lost(self) -> str:
        number = len(self.processes)
        new = "a new rank" if number == 1 else f"{number} new ranks"
        return f"the session has ended: the next cell starts {new}, without the variables."

    def end(self) -> None:
        """No process and no file of these ranks is left when this returns."""
        self.has_ended = True
        with uninterrupted():
            self._finalizer()
        atexit.unregister(self._finalizer)


def _end(processes: list[RankProcess], directory: RunDirectory, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of the driver
        end_ranks(processes, at_once=True)
        directory.remove()


def _someone_died(supervisor: CellSupervisor) -> bool:
    return any(rank.stage is Stage.DIED for rank in supervisor.ranks)


def _call_back(supervisor: CellSupervisor) -> None:
    """Interrupt what still runs, and wait a moment for it to end. C++ does not hear this."""
    for rank in supervisor.ranks:
        if rank.is_active:
            rank.process.signal(signal.SIGINT)
    for patience_s in _COME_BACK_S:
        deadline_s = time.monotonic() + patience_s
        while not supervisor.is_over and time.monotonic() < deadline_s:
            supervisor.listen(deadline_s - time.monotonic())
        supervisor.evidence.read_journals()
        active = [view for view in supervisor.evidence.views if not view.stage.is_over]
        if all(view.waits_in for view in active):
            return  # for something that ranks which were interrupted will not send


def _add(error: BaseException, sentence: str) -> None:
    """Let the error's message end with one more paragraph."""
    error.args = (f"{error}\n\n{sentence}".strip(),)
