"""Evidence of what a run's ranks do, besides what they report: journals, stacks, torch's record.

    read_journals    from the files that ranks write anyway; disturbs no rank
    examine          asks each rank, which answers on a thread of its own, or in a signal handler:
                     `rank-N.stack` (Python's), then `rank-N.recorder` (torch's)

Both update `views`, from which the doctor makes its verdict.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from labkit.comm import Timeline, recorder
from labkit.comm.journal import JournalFollower
from labkit.comm.recorder import Recorded
from labkit.doctor import stacks
from labkit.doctor.halt import Halt, halt_of
from labkit.doctor.stacks import MUTE, Stack
from labkit.doctor.verdict import Stage
from labkit.doctor.waiting import View
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import ACTIVE, STACK_SIGNAL
from labkit.launch.rank_process import Rank

# The first question about torch's own operations makes a rank import for a second or more.
PATIENCE_S = 6.0
_EVIDENCE_S = 0.5
_BEFORE_SIGNAL_S = 0.3


class Evidence:
    """Evidence about all ranks of one run; every list has an entry per rank."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        directory: RunDirectory,
        journals: Sequence[JournalFollower] | None = None,
    ) -> None:
        """journals: followers that have read the earlier cells of a session."""
        numbers = range(len(ranks))
        self._ranks, self._directory = ranks, directory
        self._journals = journals or [
            JournalFollower(directory.of_rank(number, "journal")) for number in numbers
        ]
        self.stacks = [Stack() for _ in ranks]
        self._recorded = [Recorded() for _ in ranks]
        self._halts: list[Halt | None] = [None for _ in ranks]

    @property
    def timeline(self) -> list[Timeline]:
        """Return the operations of ranks in their Groups."""
        return [journal.timeline for journal in self._journals]

    @property
    def views(self) -> list[View]:
        """Return the evidence by rank, for the doctor."""
        return [
            View(rank.stage, journal.operations, recorder, stack, halt)
            for rank, journal, recorder, stack, halt in zip(
                self._ranks, self.timeline, self._recorded, self.stacks, self._halts, strict=True
            )
        ]

    def read_journals(self) -> bool:
        """Update `timeline`. Returns whether any journal has changed."""
        changed = [journal.refresh() for journal in self._journals]
        return any(changed)

    def examine(self, request: bytes = ACTIVE, patience_s: float = _EVIDENCE_S) -> bool:
        """Ask all ranks that are alive, and read the journals. Returns whether these have changed.

        request: which of torch's own operations are asked for. A rank that has not answered after
        `patience_s`, because it holds Python's lock for example, is left out; one that cannot
        answer, because its process is stopped, is not waited for.
        """
        silence = Silence(self._ranks)
        alive = [n for n, rank in enumerate(self._ranks) if rank.stage is not Stage.DIED]
        asked = [number for number in alive if silence.of(number) is None]
        for number in alive:
            self._forget(number)
        for number in asked:
            self._ask(number, request)
        deadline_s = time.monotonic() + patience_s
        self._wait_for_answers(asked, min(patience_s, _BEFORE_SIGNAL_S), silence)
        mute = [number for number in asked if not self._stack_of(number).is_known]
        for number in mute:
            # It may hold Python's lock, so that its thread for questions gets no turn.
            self._ranks[number].process.signal(STACK_SIGNAL)
        others = set(asked) - set(mute)
        self._wait_for_answers(others, deadline_s - time.monotonic(), silence, stacks_of=mute)
        for number, rank in enumerate(self._ranks):
            rank.output.read()
            self._halts[number] = silence.of(number) if number in alive else None
            stack = self._stack_of(number)
            self.stacks[number] = stack if stack.is_known or number not in alive else MUTE
            self._recorded[number] = recorder.read(self._record_of(number))
            if number in alive:  # if it dies later, that was not its last stack
                with contextlib.suppress(OSError):
                    self._directory.of_rank(number, "stack").write_text("")
        return self.read_journals()

    def _forget(self, number: int) -> None:
        """Drop the earlier answers."""
        with contextlib.suppress(OSError):  # the run's folder may be gone
            self._directory.of_rank(number, "stack").write_text("")  # answers are appended
            self._record_of(number).unlink(missing_ok=True)

    def _ask(self, number: int, request: bytes) -> None:
        with contextlib.suppress(OSError):  # the rank may be gone
            self._ranks[number].process.lifeline.send_bytes(request)

    def _wait_for_answers(
        self,
        asked: Collection[int],
        patience_s: float,
        silence: Silence,
        stacks_of: Sequence[int] = (),
    ) -> None:
        """Wait for the records of these ranks, and for the stacks of some."""
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            awaited = [number for number in asked if not self._record_of(number).exists()]
            awaited += [number for number in stacks_of if not self._stack_of(number).is_known]
            silent = [number for number in awaited if silence.of(number) is not None]
            if silent == awaited:
                return
            time.sleep(0.01)

    def _stack_of(self, number: int) -> Stack:
        return stacks.read(self._directory.of_rank(number, "stack"))

    def _record_of(self, number: int) -> Path:
        return self._directory.of_rank(number, "recorder")


# A process that reads from a disk is in uninterruptible sleep for moments, and answers later.
_ASLEEP_S = 0.25


class Silence:
    """Detects ranks that cannot answer, from the state of their processes in the kernel."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        """Start to observe now."""
        self._ranks = ranks
        self._since_s: dict[int, float] = {}

    def of(self, number: int) -> Halt | None:
        """Return why a rank will not answer: it is stopped, or has slept at every look."""
        now_s = time.monotonic()
        halt = halt_of(self._ranks[number].process.process.pid)
        if halt is None:
            self._since_s.pop(number, None)
            return None
        has_lasted = now_s - self._since_s.setdefault(number, now_s) >= _ASLEEP_S
        return halt if halt.is_stop or has_lasted else None
