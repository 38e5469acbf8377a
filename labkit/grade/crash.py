"""A run in which a rank raised an exception or died, as a finding."""

import re
from typing import Any

from labkit.comm.operation import P2P_KINDS
from labkit.grade import own_code
from labkit.grade.harness import MARK
from labkit.grade.outcome import Finding, Outcome
from labkit.grade.own_numbers import counted
from labkit.launch import sources
from labkit.launch.diagnosis.waiting import blocked_in
from labkit.launch.errors import RankError

_NO_WORDS = re.compile(r"^Its last words:(?=\s*\Z|\nIts stack:)", re.M)


def explain_crash(failure: RankError, label: str, who: str = "") -> Finding:
    """What happened, on the rank that began it.

    label: the case, in words; empty while the code was loading. who: it, where not a rank by its
    number.
    """
    error_type, message = failure.exception_type, _message(failure)
    seen = ": ".join(part for part in (label, "" if who else f"rank {failure.rank}") if part)
    details = own_code.of_traceback(_without_marks(failure.traceback))
    common: dict[str, Any] = {"first_seen": seen, "details": details, "where": failure.site}
    # torch raises it as well, for what it has no kernel for: that is no part left to write.
    is_theirs = own_code.innermost_line(failure.traceback).startswith(f"raise {error_type}")
    if error_type == "NotImplementedError" and is_theirs:
        return Finding(
            Outcome.NOT_ATTEMPTED,
            "a part is still to be written",
            f"the code raised NotImplementedError: {message}",
            **common,
        )
    if error_type == "SubmissionError":
        return Finding(Outcome.CRASHED, "cannot be called", message, hint=1, **common)
    if error_type == "ProcessDied":
        return Finding(
            Outcome.CRASHED,
            "its process ended",
            f"{str(failure).splitlines()[0]}. {_last_operation(failure)}",
            hint=3,
            **common,
        )
    if error_type == "SystemExit":
        message = f"it called sys.exit({message}); a rank has to come back with a result"
    where = "" if failure.site is None else f" at {sources.place(failure.site)}"
    return Finding(
        Outcome.CRASHED,
        f"raises {error_type}",
        f"{who or f'rank {failure.rank}'} raised {error_type}{where}: {message}",
        hint=3,
        **common,
    )


def _message(failure: RankError) -> str:
    """The exception's own text: the last lines of the traceback, without the type."""
    last = failure.traceback.rstrip().rpartition(f"{failure.exception_type}: ")[2]
    return last if last != failure.traceback.rstrip() else ""


def _without_marks(text: str) -> str:
    """`text` without the lines that the harness printed between cases."""
    left = "\n".join(line for line in text.splitlines() if MARK not in line)
    # As launch/diagnosis/failure.py says it of a process that had no words.
    return _NO_WORDS.sub("It printed nothing before that.", left)


def _last_operation(failure: RankError) -> str:
    journal = counted(failure.timeline[failure.rank]).operations
    operations = [op for op in journal if op.kind in P2P_KINDS]
    if not operations:
        return "It had not communicated before."
    last = operations[-1]
    waited = "waited in" if blocked_in(journal) is last else "did last was"
    return f"What it {waited} {last.name}, at {sources.place(last.origin)}."
