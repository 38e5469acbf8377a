"""The driver's side of a run: what each rank has reported, and its stage.

    STARTING --ready--> RUNNING --returned--> RETURNED
        |                  |
        +---- raised / the process ends ----> RAISED / DIED

All ranks wait for "go" until the last one is ready. The first failure ends the run. For a short
time the driver still listens to consequences on other ranks. Then every rank is asked for its stack
and ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection

from labkit.doctor.verdict import Stage
from labkit.launch.examine import Evidence
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import Raised
from labkit.launch.rank_process import Rank

_GRACE_S = 0.1
_GRACE_FOR_THE_CAUSE_S = 2.0


class Supervisor:
    """Listens to the ranks of one run."""

    nothing_follows = True
    """True if the ranks do nothing after this, so that their journals are final."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        directory: RunDirectory,
        on_start: Callable[[list[int]], None] | None = None,
    ) -> None:
        """The ranks are already started. on_start: called after "go", with their process ids."""
        self.ranks, self._on_start = ranks, on_start
        self.directory = directory
        self.ready_s = 0.0
        self.evidence = Evidence(ranks, directory)

    @property
    def has_failed(self) -> bool:
        """Some rank raised or died."""
        return any(rank.stage in (Stage.RAISED, Stage.DIED) for rank in self.ranks)

    @property
    def is_over(self) -> bool:
        """No rank has anything more to say."""
        return not any(rank.is_active for rank in self.ranks)

    def listen(self, timeout_s: float) -> bool:
        """Wait for a report or output of any rank. Returns whether one reported something.

        Output is no report: ranks in a deadlock may print.
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
            # `wait` may have named the sentinel: the process may have reported before it died.
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
            with contextlib.suppress(OSError):  # a rank that just died is noticed like any other
                rank.process.control.send("go")
        if self._on_start is not None:
            pids = (rank.process.process.pid for rank in self.ranks)
            self._on_start([pid for pid in pids if pid is not None])

    def wait_for_consequences(self) -> None:
        """After a failure, listen for a moment to its consequences on other ranks.

        It listens longer while only failed communications are known: on a busy machine the rank
        that is the cause may report last.
        """
        began_s = time.monotonic()
        while not self.is_over:
            has_cause = any(rank.may_be_the_cause for rank in self.ranks)
            grace_s = _GRACE_S if has_cause else _GRACE_FOR_THE_CAUSE_S
            remaining_s = began_s + grace_s - time.monotonic()
            if remaining_s <= 0:
                return
            self.listen(remaining_s)
