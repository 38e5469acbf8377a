"""The driver's watch over a run: it ends when all ranks have returned, or with an error.

    listen_to_the_end    until all ranks have returned; four things end a run early: a rank fails,
                         ranks wait in vain, the timeout passes, Stop is pressed
    StallWatch           notices that a run will not end, without waiting for its timeout
    examine_and_diagnose asks the doctor, and collects more evidence if the verdict is open

Notes on unfinished operations are printed when all ranks have returned.
"""

from __future__ import annotations

import time

from labkit import doctor
from labkit.doctor.verdict import Fault, Stage, Verdict
from labkit.interrupts import uninterrupted
from labkit.launch import failure, notes
from labkit.launch.examine import PATIENCE_S, Evidence
from labkit.launch.rank import ALL
from labkit.launch.supervise import Supervisor


def listen_to_the_end(
    supervisor: Supervisor,
    deadline_s: float,
    timeout_s: float,
    watch: StallWatch,
    *,
    echo: bool = True,
) -> None:
    """Return when every rank has returned; raise the error that explains any other end.

    deadline_s: on the clock of time.monotonic(); timeout_s: what the reader asked for.
    watch: for ranks that wait in vain.
    echo: whether notes on long waits for a slow rank, and on unfinished operations, are printed.
    """
    __tracebackhide__ = True  # pytest shows the line that called it
    try:
        _listen(supervisor, deadline_s, timeout_s, watch, echo)
        if supervisor.has_failed:
            supervisor.wait_for_consequences()
            supervisor.evidence.examine()
            raise failure.rank_error(supervisor)
    except KeyboardInterrupt:
        with uninterrupted(quietly=True):
            supervisor.evidence.examine()
        raise failure.interrupted(supervisor) from None
    if echo and supervisor.nothing_follows:
        supervisor.evidence.read_journals()
        notes.report_unfinished_operations(supervisor.evidence.timeline)


def _listen(
    supervisor: Supervisor, deadline_s: float, timeout_s: float, watch: StallWatch, echo: bool
) -> None:
    """Return when every rank has returned, or one has failed."""
    __tracebackhide__ = True  # pytest shows the line that called it
    has_reported = not echo
    while not supervisor.is_over and not supervisor.has_failed:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            why = examine_and_diagnose(supervisor.evidence, PATIENCE_S)
            raise failure.run_timeout(supervisor, why, timeout_s)
        if supervisor.listen(min(remaining_s, watch.seconds_until_check)):
            watch.note_report()
        elif verdict := watch.check():
            if verdict.is_proof:
                raise failure.blocked_run(supervisor, verdict)
            if not has_reported:
                notes.print_note(f"{verdict.text}. The timeout is {timeout_s:g} s.")
                has_reported = True


_FIRST_LOOK_S = 0.25
_LONGEST_LOOK_S = 2.0
_DOUBT_S = 5.0


class StallWatch:
    """Looks at the journals when no rank reports; less often as long as they grow.

    A proof that holds at two looks in a row ends the run: what blocked ranks wait for cannot come.
    The journals do not have waits in operations of torch's own. For these, every rank is asked once
    nothing has moved for `stall_s`.
    """

    def __init__(self, supervisor: Supervisor, stall_s: float | None) -> None:
        """stall_s: seconds without progress after which every rank is asked; None: never, and only
        proofs count.
        """
        self._supervisor = supervisor
        self._stall_s = stall_s
        self._suspicion: Verdict | None = None
        self._doubted: Verdict | None = None
        self._ask_again_at_s = 0.0
        self.note_report()

    def note_report(self) -> None:
        """A rank reported something."""
        self._look_s = _FIRST_LOOK_S
        self._progress_at_s = time.monotonic()
        self._next_look_at_s = self._progress_at_s + self._look_s

    @property
    def seconds_until_check(self) -> float:
        """Seconds until the next look is due."""
        return max(self._next_look_at_s - time.monotonic(), 0)

    @property
    def _is_stalled(self) -> bool:
        silent_s = time.monotonic() - self._progress_at_s
        return self._stall_s is not None and silent_s >= self._stall_s

    def check(self) -> Verdict | None:
        """Return the doctor's verdict if it is due and worth reporting, else None.

        With a proof the run cannot end any more, whatever other ranks do. Without a proof some
        ranks have waited for `stall_s` for another one, which computes or has other threads.
        """
        if self.seconds_until_check > 0:
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
        """Return what the journals alone prove, once two looks agree."""
        evidence = self._supervisor.evidence
        before, self._suspicion = self._suspicion, doctor.diagnose_waits(evidence.views)
        if not self._suspicion.is_proof or self._suspicion != before:
            return None
        if before == self._doubted and time.monotonic() < self._ask_again_at_s:
            return None
        verdict = confirmed_diagnosis(evidence, PATIENCE_S)
        if verdict.is_proof:
            return verdict
        # A thread, for example, may still send what is missing; or the thread may end.
        self._doubted, self._ask_again_at_s = before, time.monotonic() + _DOUBT_S
        return None

    def _stall(self) -> Verdict | None:
        """Ask every rank, and return the doctor's verdict; None where no rank waits in vain."""
        verdict = examine_and_diagnose(self._supervisor.evidence, PATIENCE_S)
        self._next_look_at_s = time.monotonic() + max(1.0, (self._stall_s or 0) / 2)
        if verdict.is_proof:
            return verdict
        return verdict if verdict.fault not in (Fault.BUSY, Fault.UNDER_WAY) else None


def examine_and_diagnose(evidence: Evidence, patience_s: float) -> Verdict:
    """Examine the ranks, and return the verdict on why the run does not end.

    If all operations seem posted, yet nothing moves, and ranks have used torch.distributed outside
    labkit's Group API, all of torch's record is read: two different operations may have met there.
    """
    verdict = confirmed_diagnosis(evidence, patience_s)
    has_foreign = any(view.recorded.operations for view in evidence.views)
    if verdict.fault is Fault.UNDER_WAY and has_foreign:
        evidence.examine(ALL, patience_s)
        found = doctor.diagnose_now(evidence.views)
        return found if found.fault is Fault.MISMATCH else verdict
    return verdict


def confirmed_diagnosis(evidence: Evidence, patience_s: float) -> Verdict:
    """Return the verdict on fresh evidence. A deadlock needs two equal examinations.

    A rank's journal and torch's record are read one after the other. The rank may go on in between,
    so that the two never held together. What two examinations agree on held for all ranks at once,
    from the end of the first one to the start of the second one.
    """
    evidence.examine(patience_s=patience_s)
    first = doctor.diagnose_now(evidence.views)
    if first.fault not in (Fault.LEFT, Fault.CYCLE):
        return first
    evidence.examine(patience_s=patience_s)
    second = doctor.diagnose_now(evidence.views)
    if second == first or second.fault not in (Fault.LEFT, Fault.CYCLE):
        return second
    return Verdict(Fault.UNDER_WAY, "ranks go on: two looks in a row found different waits")
