"""The driver's side of a run: listen to every rank until all have come back, or one has not.

    STARTING --ready--> RUNNING --returned--> RETURNED
        |                  |
        +---- raised / the process ends ----> RAISED / DIED

All ranks wait for "go" until the last one is ready. The first failure ends the run: after a short
grace, in which the others' consequences arrive, every rank is asked for its stack and ended.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing import connection

from labkit.comm import Timeline
from labkit.comm.read_journal import read_journal
from labkit.launch import doctor, sources
from labkit.launch.doctor import Stage
from labkit.launch.engine import RankProcess
from labkit.launch.output import RankOutput
from labkit.launch.rank import Raised, Returned
from labkit.launch.run_directory import RunDirectory

_GRACE_S = 0.1
_STACK_WAIT_S = 0.25


@dataclass
class Rank:
    """What the driver knows of one rank."""

    process: RankProcess
    output: RankOutput
    stage: Stage = Stage.STARTING
    report: Returned | Raised | None = None
    ended_s: float = 0.0
    """When it failed: raised, or was seen to be dead."""

    @property
    def is_active(self) -> bool:
        """It may still report something."""
        return self.stage in (Stage.STARTING, Stage.RUNNING)


class Supervisor:
    """Listens to the ranks of one run."""

    def __init__(self, ranks: Sequence[Rank], directory: RunDirectory) -> None:
        """The ranks are already started."""
        self.ranks = ranks
        self.directory = directory
        self.ready_s = 0.0
        self.timeline: list[Timeline] = [Timeline() for _ in ranks]
        self.stacks = ["" for _ in ranks]

    @property
    def has_failed(self) -> bool:
        """Some rank raised or died."""
        return any(rank.stage in (Stage.RAISED, Stage.DIED) for rank in self.ranks)

    @property
    def is_over(self) -> bool:
        """No rank has anything more to say."""
        return not any(rank.is_active for rank in self.ranks)

    @property
    def positions(self) -> list[str]:
        """Where each rank is, in words."""
        return [
            doctor.position(rank.stage, timeline)
            for rank, timeline in zip(self.ranks, self.timeline, strict=True)
        ]

    def listen(self, timeout_s: float) -> bool:
        """Wait for the next word of any rank and take it in; whether one reported something.

        What ranks print is taken in too, but is no report: a deadlock may be talkative.
        """
        handles: dict[object, Rank] = {}
        for rank in self.ranks:
            if not rank.output.ended:
                handles[rank.output.pipe] = rank
            if rank.is_active:
                handles[rank.process.control] = rank
                handles[rank.process.process.sentinel] = rank
        has_reported = False
        heard = connection.wait(list(handles), max(timeout_s, 0))  # type: ignore[arg-type]
        for handle in heard:
            rank = handles[handle]
            rank.output.read()
            if handle is not rank.output.pipe and rank.is_active:
                self._take_report(rank)
                has_reported = True
        return has_reported

    def _take_report(self, rank: Rank) -> None:
        control = rank.process.control
        try:
            # Asked again although `wait` named a handle: the process may have reported and died.
            report = control.recv() if control.poll() else None
        except (EOFError, OSError):
            report = None
        if report is None:
            rank.process.process.join(1)  # its exit code may be a moment behind
            rank.stage, rank.ended_s = Stage.DIED, time.monotonic()
        elif report == "ready":
            rank.stage = Stage.RUNNING
            if all(other.stage is Stage.RUNNING for other in self.ranks):
                self._go()
        else:
            failed = isinstance(report, Raised)
            rank.report = report
            rank.stage = Stage.RAISED if failed else Stage.RETURNED
            rank.ended_s = report.at_s if isinstance(report, Raised) else report.end_s

    def _go(self) -> None:
        self.ready_s = time.monotonic()
        for rank in self.ranks:
            rank.process.control.send("go")

    def read_journals(self) -> None:
        """Bring `timeline` up to date."""
        self.timeline = [
            read_journal(self.directory.of_rank(number, "journal"))
            for number in range(len(self.ranks))
        ]

    def examine(self) -> None:
        """Take evidence: journals, and the stacks of ranks that are alive."""
        asked = [number for number, rank in enumerate(self.ranks) if rank.is_active]
        for number in asked:
            self.ranks[number].process.signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_WAIT_S
        while asked and time.monotonic() < deadline:
            time.sleep(0.01)
            for number in asked:
                self.stacks[number] = self._stack_of(number)
            if all(self.stacks[number] for number in asked):
                break
        for number, rank in enumerate(self.ranks):
            rank.output.read()
            if rank.stage is Stage.DIED:
                self.stacks[number] = self._stack_of(number)
        self.read_journals()

    def _stack_of(self, number: int) -> str:
        """The rank's own frames, innermost last, once faulthandler has written them all."""
        path = self.directory.of_rank(number, "stack")
        if not path.exists():
            return ""  # still on its way to its first line
        text = path.read_text(errors="replace")
        for thread in text.split("\n\n"):
            # faulthandler stops after 100 frames: then only its mark of the thread is left.
            if "in rank_main" in thread or ("Current thread" in thread and "  ..." in thread):
                lines = thread.strip().splitlines()[1:]  # innermost first, below a heading
                own = list(takewhile(lambda line: "labkit/launch/rank.py" not in line, lines))
                return sources.with_cells_named("\n".join(reversed(own)))
        return ""

    def wait_for_consequences(self) -> None:
        """After a failure, hear for a moment what it does to the others."""
        deadline = time.monotonic() + _GRACE_S
        while not self.is_over and time.monotonic() < deadline:
            self.listen(deadline - time.monotonic())
