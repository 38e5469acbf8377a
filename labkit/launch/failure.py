"""Make the error that explains a failed run.

When one rank dies, its peers fail within milliseconds with "Connection closed". The cause is the
earliest failure that is not an error of a communication. Later failures are shown as consequences.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import signal
import time
from typing import Any

from labkit import doctor
from labkit.comm import OperationMismatch, Timeline
from labkit.comm.operation import named, ranks_named
from labkit.doctor import position, sources, stacks
from labkit.doctor.verdict import Fault, Stage, Verdict
from labkit.launch.errors import Deadlock, Interrupted, Mismatch, RankError, RunError, RunTimeout
from labkit.launch.rank import Raised
from labkit.launch.rank_process import Rank
from labkit.launch.supervise import Supervisor

_MOST_LAST_LINES = 12
# gloo's messages begin with a line of its own source, and end with a guess at the cause.
_SOURCE_LINE = re.compile(r"^\[\S+\.cc:\d+\] ")
_GUESSED_CAUSE = " This is typically caused by"


def rank_error(supervisor: Supervisor) -> RunError:
    """Return the error of a run in which ranks raised or died."""
    failed = [
        number
        for number, rank in enumerate(supervisor.ranks)
        if rank.stage in (Stage.RAISED, Stage.DIED)
    ]
    culprit = min(failed, key=lambda number: _blame(supervisor, number))
    has_found_a_mismatch = _has_found_a_mismatch(supervisor.ranks[culprit])
    diagnose = doctor.diagnose if has_found_a_mismatch else doctor.diagnose_now
    verdict = diagnose(supervisor.evidence.views)
    if has_found_a_mismatch:
        # Journals lack some of what ranks compare, such as the shared memory that they use.
        is_named = verdict.fault is Fault.MISMATCH
        return blocked_run(supervisor, verdict if is_named else _as_found(supervisor, culprit))
    consequences = {
        number: _consequence(supervisor, number)
        for number, other in enumerate(supervisor.ranks)
        if number != culprit and other.stage is not Stage.IDLE
    }
    rank = supervisor.ranks[culprit]
    trace = _trace(rank, supervisor.evidence.stacks[culprit].text)
    lines = [_what_happened(culprit, rank), "", trace]
    if rank.stage is Stage.DIED:
        lines += [f"It {_positions(supervisor)[culprit]}."]
    if verdict.fault is Fault.MISMATCH:
        lines += ["", f"Before that, {verdict}"]
    if consequences:
        followed = all(_is_consequence(supervisor.ranks[number]) for number in consequences)
        lines += ["", "Later, on the other ranks:" if followed else "The other ranks:"]
        lines += [position.lines(consequences)]
    error = RankError("\n".join(lines), **_to_error(supervisor))
    error.rank, error.consequences, error.traceback = culprit, consequences, trace
    if isinstance(rank.report, Raised):
        error.exception_type, error.site = rank.report.type_name, rank.report.site
        if rank.report.exception is not None:
            with contextlib.suppress(Exception):  # its class may not be known here
                error.exception = pickle.loads(rank.report.exception)
    else:
        error.exception_type = "ProcessDied"
        error.exit_code = rank.process.process.exitcode
    return error


def blocked_run(supervisor: Supervisor, verdict: Verdict) -> RunError:
    """Return the error of a run whose ranks are in a deadlock, or call different operations."""
    kind = Mismatch if verdict.fault is Fault.MISMATCH else Deadlock
    message = f"{verdict}\n\n{_where_each_rank_is(supervisor)}"
    return kind(message, verdict=verdict, **_to_error(supervisor))


def run_timeout(supervisor: Supervisor, verdict: Verdict, timeout_s: float) -> RunTimeout:
    """Return the error of a run that is not over after `timeout_s`."""
    message = f"the run did not end within {timeout_s:g} s: {verdict}\n\n"
    message += _where_each_rank_is(supervisor)
    return RunTimeout(message, verdict=verdict, **_to_error(supervisor))


def interrupted(supervisor: Supervisor) -> Interrupted:
    """Return the error after Stop, with the position of every rank."""
    verdict = doctor.diagnose_now(supervisor.evidence.views)
    message = f"stopped: {verdict}\n\n{_where_each_rank_is(supervisor)}"
    return Interrupted(message, _positions(supervisor), _stacks(supervisor))


def _as_found(supervisor: Supervisor, culprit: int) -> Verdict:
    """Return the verdict of a mismatch, with the message of the rank that found it."""
    report = supervisor.ranks[culprit].report
    assert isinstance(report, Raised)
    where = "" if report.site is None else f" at {sources.place(report.site)}"
    text = f"rank {culprit} found{where}: {report.message}"
    return Verdict(Fault.MISMATCH, text, ranks=(culprit,), is_proof=True)


def _has_found_a_mismatch(rank: Rank) -> bool:
    return isinstance(rank.report, Raised) and rank.report.type_name == OperationMismatch.__name__


def _is_consequence(rank: Rank) -> bool:
    """Return whether another rank's failure can have caused what this rank did."""
    return not isinstance(rank.report, Raised) or rank.report.is_communication_error


def _blame(supervisor: Supervisor, number: int) -> tuple[bool, bool, float]:
    """Return a key that sorts the cause first: no communication's error, a death, the earliest.

    A rank that raises keeps its connections open until the driver releases it. So a death is never
    a consequence, but a failed communication is one.
    """
    rank = supervisor.ranks[number]
    died = rank.stage is Stage.DIED
    comes_of_another = isinstance(rank.report, Raised) and rank.report.is_communication_error
    return (comes_of_another, not died, rank.ended_s)


def _what_happened(number: int, rank: Rank) -> str:
    if isinstance(rank.report, Raised):
        where = "" if rank.report.site is None else f" at {sources.place(rank.report.site)}"
        return f"rank {number} raised {rank.report.type_name}{where}: {rank.report.message}"
    return f"rank {number} died: {cause_of_death(rank.process.process.exitcode)}"


def _trace(rank: Rank, stack: str) -> str:
    """Return the rank's traceback; for a dead process, its last output and its stack."""
    if isinstance(rank.report, Raised):
        return sources.with_cells_named(rank.report.traceback).rstrip()
    words = rank.output.log.splitlines()[-_MOST_LAST_LINES:]
    text = "\n".join(["Its last words:", *(f"  {word}" for word in words)])
    if not words:
        text = "It printed nothing before that."
    return f"{text}\nIts stack:\n{stack}" if stack else text


def _consequence(supervisor: Supervisor, number: int) -> str:
    rank = supervisor.ranks[number]
    if isinstance(rank.report, Raised):
        said = _SOURCE_LINE.sub("", rank.report.message.partition("\n")[0]).partition(
            _GUESSED_CAUSE
        )[0]
        broken = [each for each in supervisor.evidence.timeline[number].operations if each.failed]
        where = f" in {named(broken[0])} ({sources.place(broken[0].origin)})" if broken else ""
        return f"raised {rank.report.type_name}{where}: {said}"
    if rank.stage is Stage.DIED:
        return f"died: {cause_of_death(rank.process.process.exitcode)}"
    return _positions(supervisor)[number]


def _where_each_rank_is(supervisor: Supervisor) -> str:
    """Return the evidence: a table of all ranks, and the stacks of those in the function."""
    ranks_at: dict[str, list[int]] = {}
    for number, (rank, stack) in enumerate(
        zip(supervisor.ranks, supervisor.evidence.stacks, strict=True)
    ):
        if text := _frames(rank) or (rank.is_active and stack.text):
            ranks_at.setdefault(text, []).append(number)
    return f"Where each rank is:\n{position.table(supervisor.evidence.views)}" + "".join(
        f"\n\nStack of {ranks_named(numbers)}:\n{text}" for text, numbers in ranks_at.items()
    )


def _frames(rank: Rank) -> str:
    """Return where the rank raised: the reader's own frames, innermost last."""
    if not isinstance(rank.report, Raised):
        return ""
    return sources.with_cells_named(stacks.own_frames(rank.report.traceback))


def _positions(supervisor: Supervisor) -> list[str]:
    """Return where each rank is, in words."""
    return [position.position_of(view) for view in supervisor.evidence.views]


def _stacks(supervisor: Supervisor) -> list[str]:
    """Return the stack of each rank that has not returned; else an empty text."""
    return [
        stack.text if rank.is_active or rank.stage is Stage.DIED else ""
        for rank, stack in zip(supervisor.ranks, supervisor.evidence.stacks, strict=True)
    ]


def _to_error(supervisor: Supervisor) -> dict[str, Any]:
    """Return the parts of a failed run that programs can read.

    Its timelines go from "go" until now, or to the rank's end.
    """
    zero_s, now_s = supervisor.ready_s or time.monotonic(), time.monotonic()
    timelines = [
        Timeline(timeline.operations, timeline.regions, zero_s, rank.ended_s or now_s)
        for timeline, rank in zip(supervisor.evidence.timeline, supervisor.ranks, strict=True)
    ]
    return {
        "timeline": [timeline.shifted(zero_s) for timeline in timelines],
        "logs": [rank.output.log for rank in supervisor.ranks],
        "positions": _positions(supervisor),
        "stacks": _stacks(supervisor),
    }


_HINTS = {
    "SIGKILL": "; from outside, or by the system when memory ran out",
    "SIGABRT": "; an error in C++ that Python could not catch, see its last words",
    "SIGSEGV": "; a crash in C++, see its last words",
    "SIGBUS": "; the folder for temporary files, or /dev/shm, is full; `labkit doctor` says",
}


def cause_of_death(code: int | None) -> str:
    """Describe an exit code of multiprocessing: below 0, minus the signal; None: unknown."""
    if code is None:
        return "its process is gone"
    if code >= 0:
        return f"its process exited with code {code}, past the launcher (os._exit?)"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"its process was ended by {name}{_HINTS.get(name, '')}"
