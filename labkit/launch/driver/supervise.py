"""The driver's side of a run: listen to every rank until all have come back, or one has not.

    STARTING --ready--> RUNNING --returned--> RETURNED
        |                  |
        +---- raised / the process ends ----> RAISED / DIED

All ranks wait for "go" until the last one is ready. The first failure ends the run: after a short
grace, in which the others' consequences arrive, every rank is asked for its stack and ended.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection, Sequence
from multiprocessing import connection
from pathlib import Path

from labkit.comm import Timeline, recorded
from labkit.comm.calls.compared import journal_of
from labkit.comm.follow_journal import JournalFollower
from labkit.comm.recorded import HandedOver, Recorded
from labkit.launch.diagnosis import stacks
from labkit.launch.diagnosis.stacks import Stack
from labkit.launch.diagnosis.waiting import View
from labkit.launch.driver.rank_state import Rank
from labkit.launch.driver.silence import Silence
from labkit.launch.machine.halt import Halt
from labkit.launch.ranks.rank import ACTIVE
from labkit.launch.ranks.report import Raised, Returned
from labkit.launch.ranks.stage import Stage
from labkit.launch.run_directory import RunDirectory

_GRACE_S = 0.1
_GRACE_FOR_THE_CAUSE_S = 2.0
_EVIDENCE_S = 0.5
_POLITE_S = 0.3


class Supervisor:
    """Listens to the ranks of one run."""

    nothing_follows = True
    """Whether what the ranks leave behind stays so: they do nothing after this."""

    def __init__(self, ranks: Sequence[Rank], directory: RunDirectory) -> None:
        """The ranks are already started."""
        self.ranks = ranks
        self.directory = directory
        self.ready_s = 0.0
        self.timeline: list[Timeline] = [Timeline() for _ in ranks]
        self.calls: list[Timeline] = [Timeline() for _ in ranks]
        self.stacks = [Stack() for _ in ranks]
        self._journals = [
            JournalFollower(directory.of_rank(number, "journal")) for number in range(len(ranks))
        ]
        self.recorded = [Recorded() for _ in ranks]
        self.halts: list[Halt | None] = [None for _ in ranks]
        self._calls = [
            JournalFollower(journal_of(directory.path, number)) for number in range(len(ranks))
        ]

    @property
    def has_failed(self) -> bool:
        """Some rank raised or died."""
        return any(rank.stage in (Stage.RAISED, Stage.DIED) for rank in self.ranks)

    @property
    def is_over(self) -> bool:
        """No rank has anything more to say."""
        return not any(rank.is_active for rank in self.ranks)

    @property
    def views(self) -> list[View]:
        """What is known of each rank."""
        return [
            View(rank.stage, journal.operations, recorded, stack, calls.operations, halt)
            for rank, journal, recorded, stack, calls, halt in zip(
                self.ranks,
                self.timeline,
                self.recorded,
                self.stacks,
                self.calls,
                self.halts,
                strict=True,
            )
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

    def read_journals(self) -> bool:
        """Bring `timeline` and `calls` up to date; whether any journal has changed."""
        changed = [journal.refresh() for journal in (*self._journals, *self._calls)]
        self.timeline = [journal.timeline for journal in self._journals]
        self.calls = [journal.timeline for journal in self._calls]
        return any(changed)

    @property
    def handed_over(self) -> dict[int, HandedOver]:
        """What returned ranks did past their Groups."""
        return {
            number: rank.report.recorded
            for number, rank in enumerate(self.ranks)
            if isinstance(rank.report, Returned)
        }

    def examine(self, request: bytes = ACTIVE, patience_s: float = _EVIDENCE_S) -> bool:
        """Take evidence of ranks that are alive: journals, stacks, and what torch recorded.

        Returns whether any journal has changed since it was last read.
        request: which of torch's own operations are asked for. A rank that has not answered after
        `patience_s`, because it holds Python's lock for example, is left out; one that cannot
        answer, because its process is stopped, is not waited for.
        """
        silence = Silence(self.ranks)
        alive = [number for number, rank in enumerate(self.ranks) if rank.stage is not Stage.DIED]
        asked = [number for number in alive if silence.of(number) is None]
        for number in alive:
            self._forget(number)
        for number in asked:
            self._ask(number, request)
        deadline_s = time.monotonic() + patience_s
        self._hear(asked, min(patience_s, _POLITE_S), silence)
        mute = [number for number in asked if not self._stack_of(number).is_known]
        for number in mute:
            # Such as one that holds Python's lock: its thread for questions gets no turn.
            self.ranks[number].process.signal(signal.SIGUSR1)
        others = set(asked) - set(mute)
        self._hear(others, deadline_s - time.monotonic(), silence, stacks_of=mute)
        for number, rank in enumerate(self.ranks):
            rank.output.read()
            self.halts[number] = silence.of(number) if number in alive else None
            self.stacks[number] = self._stack_of(number)
            self.recorded[number] = recorded.read(self._record_of(number))
            if number in alive:  # where it dies later, that was not its last stack
                with contextlib.suppress(OSError):
                    self.directory.of_rank(number, "stack").write_text("")
        return self.read_journals()

    def _forget(self, number: int) -> None:
        """What it has answered before."""
        with contextlib.suppress(OSError):  # the run's folder may be gone
            self.directory.of_rank(number, "stack").write_text("")  # answers are appended
            self._record_of(number).unlink(missing_ok=True)

    def _ask(self, number: int, request: bytes) -> None:
        with contextlib.suppress(OSError):  # the rank may be gone
            self.ranks[number].process.lifeline.send_bytes(request)

    def _hear(
        self,
        asked: Collection[int],
        patience_s: float,
        silence: Silence,
        stacks_of: Sequence[int] = (),
    ) -> None:
        """Wait for these ranks' answers, the record last; of some for a stack only."""
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            awaited = [number for number in asked if not self._record_of(number).exists()]
            awaited += [number for number in stacks_of if not self._stack_of(number).is_known]
            silent = [number for number in awaited if silence.of(number) is not None]
            if silent == awaited:
                return
            time.sleep(0.01)

    def _stack_of(self, number: int) -> Stack:
        return stacks.read(self.directory.of_rank(number, "stack"))

    def _record_of(self, number: int) -> Path:
        return self.directory.of_rank(number, "recorder")

    def wait_for_consequences(self) -> None:
        """After a failure, hear for a moment what it does to the others.

        Longer while all that is known are failed communications: on a busy machine the rank that
        is the cause may be the last to say so.
        """
        began_s = time.monotonic()
        while not self.is_over:
            has_cause = any(rank.may_be_the_cause for rank in self.ranks)
            grace_s = _GRACE_S if has_cause else _GRACE_FOR_THE_CAUSE_S
            remaining_s = began_s + grace_s - time.monotonic()
            if remaining_s <= 0:
                return
            self.listen(remaining_s)
