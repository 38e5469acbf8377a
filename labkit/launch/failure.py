"""From a failed run to the error that explains it.

When one rank dies, its peers fail within milliseconds with "Connection closed". The verdict is the
earliest failure that did not come out of a communication; what followed is shown as consequences.
"""

from __future__ import annotations

import contextlib
import pickle
import signal as signals
import time
from typing import Any

from labkit.comm import Timeline
from labkit.launch import doctor, sources
from labkit.launch.doctor import Stage
from labkit.launch.errors import Deadlock, Interrupted, RankError, RunTimeout
from labkit.launch.rank import Raised
from labkit.launch.supervise import Rank, Supervisor

_LAST_WORDS_LINES = 12


def rank_error(supervisor: Supervisor) -> RankError:
    """The error of a run in which ranks raised or died."""
    failed = [
        number
        for number, rank in enumerate(supervisor.ranks)
        if rank.stage in (Stage.RAISED, Stage.DIED)
    ]
    culprit = min(failed, key=lambda number: _blame(supervisor, number))
    consequences = {
        number: _consequence(supervisor, number)
        for number in range(len(supervisor.ranks))
        if number != culprit
    }
    rank = supervisor.ranks[culprit]
    trace = _trace(rank, supervisor.stacks[culprit])
    lines = [_what_happened(culprit, rank), "", trace]
    if consequences:
        lines += ["", "What followed on the other ranks:"]
        lines += [f"  rank {number} {text}" for number, text in consequences.items()]
    error = RankError("\n".join(lines), **_evidence(supervisor))
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


def run_timeout(supervisor: Supervisor, timeout_s: float) -> RunTimeout:
    """The error of a run that is not over after `timeout_s`."""
    summary = doctor.summary(supervisor.positions)
    message = f"the run did not end within {timeout_s:g} s:\n{summary}"
    return RunTimeout(message + _stacks(supervisor), **_evidence(supervisor))


def deadlock(supervisor: Supervisor, proof: str) -> Deadlock:
    """The error of a run in which a rank waits in vain."""
    summary = doctor.summary(supervisor.positions)
    message = f"{proof}.\n\nWhere each rank is:\n{summary}"
    return Deadlock(message + _stacks(supervisor), **_evidence(supervisor))


def interrupted(supervisor: Supervisor) -> Interrupted:
    """Stop, with what every rank was doing."""
    summary = doctor.summary(supervisor.positions)
    message = f"stopped:\n{summary}{_stacks(supervisor)}"
    return Interrupted(message, supervisor.positions, supervisor.stacks)


def _blame(supervisor: Supervisor, number: int) -> tuple[bool, bool, float]:
    """Sorts failures, the cause first: errors of a rank's own, deaths, and the earliest.

    A rank that raises keeps its connections open until the driver lets go. So a death is never a
    consequence, but a communication that failed is one.
    """
    rank = supervisor.ranks[number]
    died = rank.stage is Stage.DIED
    operations = supervisor.timeline[number].operations
    is_consequence = not died and any(operation.failed for operation in operations)
    return (is_consequence, not died, rank.ended_s)


def _what_happened(number: int, rank: Rank) -> str:
    if isinstance(rank.report, Raised):
        where = "" if rank.report.site is None else f" at {sources.place(rank.report.site)}"
        return f"rank {number} raised {rank.report.type_name}{where}: {rank.report.message}"
    return f"rank {number} died: {_cause_of_death(rank)}"


def _cause_of_death(rank: Rank) -> str:
    code = rank.process.process.exitcode
    if code is None:
        return "its process is gone"
    if code >= 0:
        return f"its process exited with code {code}, past the launcher (os._exit?)"
    name = signals.Signals(-code).name if -code in set(signals.Signals) else f"signal {-code}"
    hint = {
        "SIGKILL": "; from outside, or by the system when memory ran out",
        "SIGABRT": "; an error in C++ that Python could not catch, see its last words",
        "SIGSEGV": "; a crash in C++, see its last words",
    }
    return f"its process was ended by {name}{hint.get(name, '')}"


def _trace(rank: Rank, stack: str) -> str:
    """The rank's own traceback; of a dead process, the last that is known."""
    if isinstance(rank.report, Raised):
        return sources.with_cells_named(rank.report.traceback).rstrip()
    words = rank.output.log.splitlines()[-_LAST_WORDS_LINES:]
    text = "\n".join(["Its last words:", *(f"  {word}" for word in words)])
    if not words:
        text = "It printed nothing before that."
    return f"{text}\nIts stack:\n{stack}" if stack else text


def _consequence(supervisor: Supervisor, number: int) -> str:
    rank = supervisor.ranks[number]
    if isinstance(rank.report, Raised):
        first_line = rank.report.message.partition("\n")[0]
        return f"raised {rank.report.type_name}: {first_line}"
    if rank.stage is Stage.DIED:
        return f"died: {_cause_of_death(rank)}"
    return supervisor.positions[number]


def _stacks(supervisor: Supervisor) -> str:
    """Every stack that was taken, below the ranks that share it."""
    ranks_at: dict[str, list[int]] = {}
    for number, stack in enumerate(supervisor.stacks):
        if stack:
            ranks_at.setdefault(stack, []).append(number)
    return "".join(
        f"\n\nStack of rank {', '.join(map(str, numbers))}:\n{stack}"
        for stack, numbers in ranks_at.items()
    )


def _evidence(supervisor: Supervisor) -> dict[str, Any]:
    """What programs can read of a failed run; its timelines go from "go" until now."""
    zero_s, now_s = supervisor.ready_s or time.monotonic(), time.monotonic()
    timelines = [
        Timeline(timeline.operations, timeline.regions, zero_s, now_s)
        for timeline in supervisor.timeline
    ]
    return {
        "timeline": [timeline.shifted(zero_s) for timeline in timelines],
        "logs": [rank.output.log for rank in supervisor.ranks],
        "positions": supervisor.positions,
        "stacks": supervisor.stacks,
    }
