"""Noticing that a run will not end, without waiting for its timeout."""

from __future__ import annotations

import time
import zlib

from labkit.launch import doctor
from labkit.launch.consult import consult
from labkit.launch.doctor import Fault, Verdict
from labkit.launch.stage import Stage
from labkit.launch.supervise import Supervisor

_FIRST_LOOK_S = 0.25
_LONGEST_LOOK_S = 2.0
# The first question about torch's own operations makes a rank import for a second or more.
_PATIENCE_S = 6.0


class StallWatch:
    """Looks at the journals when no rank reports; less often as long as they grow.

    A proof that holds at two looks in a row ends the run: what blocked ranks wait for cannot come.
    Where a rank has threads besides the one that runs the function, those may still bring it; then
    the proof must hold for `stall_s`, and so it must for operations of torch's own, which take
    a question to every rank.
    """

    def __init__(self, supervisor: Supervisor, stall_s: float | None) -> None:
        """stall_s: seconds without progress after which the doctor is asked; None: never."""
        self._supervisor = supervisor
        self._stall_s = stall_s
        self._journals: list[int] = []
        self._suspicion: Verdict | None = None
        self._has_examined = False
        self.news()

    def news(self) -> None:
        """A rank reported something."""
        self._look_s = _FIRST_LOOK_S
        self._progress_at_s = time.monotonic()
        self._next_look_at_s = self._progress_at_s + self._look_s

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look is due."""
        return max(self._next_look_at_s - time.monotonic(), 0)

    @property
    def _silent_s(self) -> float:
        return time.monotonic() - self._progress_at_s

    def look(self) -> Verdict | None:
        """The doctor's verdict, once it is due and worth telling; None otherwise.

        A final one means that the run cannot end any more. Another one is told once: some ranks
        have waited for `stall_s`, for one that computes.
        """
        if self.next_look_s > 0:
            return None
        self._next_look_at_s = time.monotonic() + self._look_s
        stages = [rank.stage for rank in self._supervisor.ranks]
        if Stage.STARTING in stages:
            return None
        if self._has_grown():
            self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
            return None
        self._look_s = _FIRST_LOOK_S
        return self._proof() or self._stall()

    def _has_grown(self) -> bool:
        """Whether any journal has changed since the last look."""
        journals = [zlib.crc32(data) for data in self._supervisor.raw_journals()]
        if journals == self._journals:
            return False
        self._journals, self._suspicion, self._has_examined = journals, None, False
        self._progress_at_s = time.monotonic()
        return True

    def _proof(self) -> Verdict | None:
        """What the journals alone prove, once two looks agree."""
        supervisor = self._supervisor
        supervisor.read_journals()
        verdict = doctor.diagnose(supervisor.views)
        before, self._suspicion = self._suspicion, verdict
        if not verdict.fault.is_final or before != verdict:
            return None
        if not self._has_examined:
            self._has_examined = True
            supervisor.examine(patience_s=_PATIENCE_S)
        # A rank whose function returned may have left threads, too.
        has_threads = any(stack.num_other_threads for stack in supervisor.stacks)
        if has_threads and (self._stall_s is None or self._silent_s < self._stall_s):
            return None
        return verdict

    def _stall(self) -> Verdict | None:
        """What the doctor says once nothing has moved for `stall_s`."""
        if self._stall_s is None or self._silent_s < self._stall_s:
            return None
        self._look_s = max(1.0, self._stall_s / 2)
        verdict = consult(self._supervisor, _PATIENCE_S)
        has_journals_grown = self._has_grown()
        if has_journals_grown or verdict.fault in (Fault.BUSY, Fault.UNDER_WAY):
            return None
        return verdict
