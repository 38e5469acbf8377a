"""Noticing that a run will not end, without waiting for its timeout."""

from __future__ import annotations

import time

from labkit import doctor
from labkit.doctor.stage import Stage
from labkit.doctor.verdict import Fault, Verdict
from labkit.launch.diagnosis.consult import consult, examined
from labkit.launch.driver.supervise import Supervisor

_FIRST_LOOK_S = 0.25
_LONGEST_LOOK_S = 2.0
_DOUBT_S = 5.0
# The first question about torch's own operations makes a rank import for a second or more.
_PATIENCE_S = 6.0


class StallWatch:
    """Looks at the journals when no rank reports; less often as long as they grow.

    A proof that holds at two looks in a row ends the run: what blocked ranks wait for cannot come.
    What the journals do not prove, such as waits in operations of torch's own, takes a question to
    every rank, and is asked once nothing has moved for `stall_s`.
    """

    def __init__(
        self, supervisor: Supervisor, stall_s: float | None, *, ends_deadlocks: bool = True
    ) -> None:
        """stall_s: seconds without progress after which every rank is asked; None: never, and only
        proofs count. ends_deadlocks: whether these do.
        """
        self._supervisor = supervisor
        self._stall_s = stall_s
        self._ends_deadlocks = ends_deadlocks
        self._suspicion: Verdict | None = None
        self._doubted: Verdict | None = None
        self._ask_again_at_s = 0.0
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
    def _is_stalled(self) -> bool:
        silent_s = time.monotonic() - self._progress_at_s
        return self._stall_s is not None and silent_s >= self._stall_s

    def look(self) -> Verdict | None:
        """The doctor's verdict, once it is due and worth telling; None otherwise.

        With a proof the run cannot end any more, whatever other ranks do meanwhile. Without one
        some ranks have waited for `stall_s`, for another that computes, or has threads besides.
        """
        if self.next_look_s > 0:
            return None
        has_grown = self._supervisor.evidence.read_journals()
        is_starting = any(rank.stage is Stage.STARTING for rank in self._supervisor.ranks)
        if has_grown or is_starting:
            self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
            self._progress_at_s = time.monotonic()
        else:
            self._look_s = _FIRST_LOOK_S
        self._next_look_at_s = time.monotonic() + self._look_s
        if is_starting:
            return None
        return self._proof() or (self._stall() if self._is_stalled else None)

    def _proof(self) -> Verdict | None:
        """What the journals alone prove, once two looks agree."""
        if not self._ends_deadlocks:
            return None
        evidence = self._supervisor.evidence
        before, self._suspicion = self._suspicion, doctor.diagnose_waits(evidence.views)
        if not self._suspicion.is_proof or self._suspicion != before:
            return None
        if before == self._doubted and time.monotonic() < self._ask_again_at_s:
            return None
        verdict = examined(evidence, _PATIENCE_S)
        if verdict.is_proof:
            return verdict
        # By a thread, say, that may still bring what is missing; or it may end.
        self._doubted, self._ask_again_at_s = before, time.monotonic() + _DOUBT_S
        return None

    def _stall(self) -> Verdict | None:
        """What the doctor says when every rank has been asked; None where nobody waits in vain."""
        verdict = consult(self._supervisor.evidence, _PATIENCE_S)
        self._next_look_at_s = time.monotonic() + max(1.0, (self._stall_s or 0) / 2)
        if verdict.is_proof:
            return verdict
        return verdict if verdict.fault not in (Fault.BUSY, Fault.UNDER_WAY) else None
