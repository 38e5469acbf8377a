"""The errors of a failed run: each names the rank, its line, and the consequences."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from labkit.comm import Site, Timeline
from labkit.doctor.verdict import Verdict


class RunError(RuntimeError):
    """A run that did not return. The evidence is by rank.

    `timeline`: the journals as far as they were written. `logs`: what was printed.
    `positions`: where each rank was, in words. `stacks`: Python stacks of ranks still alive.
    `verdict`: the doctor's (fault, text, advice, ranks, is_proof); None where a rank raised or
    died, which explains the run. `attempts`: of a job that elastic.run has restarted.
    """

    attempts: Sequence[Any] = ()

    def __init__(
        self,
        message: str,
        *,
        timeline: Sequence[Timeline] = (),
        logs: Sequence[str] = (),
        positions: Sequence[str] = (),
        stacks: Sequence[str] = (),
        verdict: Verdict | None = None,
    ) -> None:
        """`message` is all that is shown; the rest is for programs."""
        super().__init__(message)
        self.timeline = list(timeline)
        self.logs = list(logs)
        self.positions = list(positions)
        self.stacks = list(stacks)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        """Notebooks show this instead of the launcher's own frames, which say nothing."""
        text = "\n\n".join([f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])])
        return text.splitlines()


class RankError(RunError):
    """One rank raised an exception, or its process died; errors on other ranks are consequences.

    `rank`, `exception_type`, `traceback` (the rank's own), `site` (its line), `exception` (the
    object itself where it could travel), `consequences` (other ranks, in words).
    """

    rank: int = -1
    exception_type: str = ""
    exception: BaseException | None = None
    traceback: str = ""
    site: Site | None = None
    exit_code: int | None = None
    consequences: dict[int, str] = {}


class RunTimeout(RunError, TimeoutError):
    """The run did not end in time."""


class Deadlock(RunError):
    """Ranks wait for something that cannot come any more."""


class Mismatch(RunError):
    """Ranks meant different operations where they should have meant the same.

    Within a host it is raised before the operation is carried out. Between hosts it is raised when
    the job has ended or hangs. For torch's own operations it is raised only if the run hangs.
    """


class Interrupted(KeyboardInterrupt):
    """Stop was pressed. `positions` and `stacks` say where each rank was."""

    def __init__(
        self, message: str, positions: Sequence[str] = (), stacks: Sequence[str] = ()
    ) -> None:
        """`message` shows every rank's position and stack."""
        super().__init__(message)
        self.positions = list(positions)
        self.stacks = list(stacks)
        _end_the_script_with_the_report()

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".splitlines()


def as_interrupted(stop: KeyboardInterrupt) -> Interrupted:
    """Return `stop` as Interrupted. If it has no report, it came while ranks started or ended."""
    if isinstance(stop, Interrupted):
        return stop
    return Interrupted(str(stop) or "stopped while ranks were started or ended")


def _end_the_script_with_the_report() -> None:
    """Let a script that does not catch Interrupted end with status 130.

    Python does so for KeyboardInterrupt itself, with a traceback; for a subclass the status is 1.
    At a prompt only the report is printed, and the prompt returns.
    """
    before = sys.excepthook
    if getattr(before, "is_of_labkit", False):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, Interrupted):
            before(kind, error, trace)
            return
        print(*error._render_traceback_(), sep="\n", file=sys.stderr)
        if not hasattr(sys, "ps1"):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the next Ctrl-C ends the process at once
            raise SystemExit(128 + signal.SIGINT)

    show.is_of_labkit = True  # type: ignore[attr-defined]
    sys.excepthook = show
