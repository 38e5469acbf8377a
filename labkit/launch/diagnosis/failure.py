"""From a failed run to the error that explains it.

When one rank dies, its peers fail within milliseconds with "Connection closed". The verdict is the
earliest failure that did not come out of a communication; what followed is shown as consequences.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import time
from typing import Any

from labkit.comm import Disagreement, Timeline
from labkit.comm.agreement.difference import ADVICE, Aspect
from labkit.comm.recorded import Differing, is_foreign
from labkit.comm.words import listed, named, ranks_named
from labkit.launch import doctor, sources
from labkit.launch.diagnosis import position, stacks
from labkit.launch.diagnosis.cause_of_death import cause_of_death
from labkit.launch.doctor import Fault, Verdict
from labkit.launch.driver.left_over import Left
from labkit.launch.driver.rank_state import Rank
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.errors import Deadlock, Interrupted, Mismatch, RankError, RunError, RunTimeout
from labkit.launch.ranks.report import Raised
from labkit.launch.ranks.stage import Stage

_LAST_WORDS_LINES = 12
# Around gloo's messages: a line of its own source, and a guess with a greeting.
_GLOOS_LINE = re.compile(r"^\[\S+\.cc:\d+\] ")
_GUESS = " This is typically caused by"


def rank_error(supervisor: Supervisor) -> RunError:
    """The error of a run in which ranks raised or died."""
    failed = [
        number
        for number, rank in enumerate(supervisor.ranks)
        if rank.stage in (Stage.RAISED, Stage.DIED)
    ]
    culprit = min(failed, key=lambda number: _blame(supervisor, number))
    has_found_a_mismatch = _has_found_a_mismatch(supervisor.ranks[culprit])
    diagnose = doctor.diagnose if has_found_a_mismatch else doctor.diagnose_now
    verdict = diagnose(supervisor.views)
    if has_found_a_mismatch and verdict.fault is Fault.MISMATCH:
        return cannot_end(supervisor, verdict)
    consequences = {
        number: _consequence(supervisor, number)
        for number, other in enumerate(supervisor.ranks)
        if number != culprit and other.stage is not Stage.IDLE
    }
    rank = supervisor.ranks[culprit]
    trace = _trace(rank, supervisor.stacks[culprit].text)
    lines = [_what_happened(culprit, rank), "", trace]
    if rank.stage is Stage.DIED:
        lines += [f"It {_positions(supervisor)[culprit]}."]
    if verdict.fault is Fault.MISMATCH:
        lines += ["", f"Before that, {verdict}"]
    if consequences:
        followed = all(_is_consequence(supervisor.ranks[number]) for number in consequences)
        lines += ["", "What followed on the other ranks:" if followed else "The other ranks:"]
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


def cannot_end(supervisor: Supervisor, verdict: Verdict) -> RunError:
    """The error of a run whose ranks wait in vain, or do not mean the same."""
    kind = Mismatch if verdict.fault is Fault.MISMATCH else Deadlock
    message = f"{verdict}\n\n{_where_each_rank_is(supervisor)}"
    return kind(message, verdict=verdict, **_evidence(supervisor))


def silent_mismatch(supervisor: Supervisor, differing: Differing) -> Mismatch:
    """The error of a run that came back, but in which torch mixed up different operations."""
    verdict = doctor.diagnose(supervisor.views)
    lead = (
        "every rank has returned, but the numbers are wrong: torch.distributed was called past the "
        "Groups, and in silence it combined operations that do not match"
    )
    # A rank did not answer when it was asked for the lines, or torch has overwritten them since.
    if verdict.fault is not Fault.MISMATCH:
        ranks = tuple(sorted(differing.ranks))
        text = f"{differing}; by which lines could not be found out"
        verdict = Verdict(Fault.MISMATCH, text, "", ranks, is_proof=True)
    return Mismatch(f"{lead}. {verdict}", verdict=verdict, **_evidence(supervisor))


def mixed_up(supervisor: Supervisor, left: Left) -> Mismatch:
    """The error of a run that came back, in which an operation met one that nobody knows of."""
    operation, unmet = left.operation, ranks_named(left.unmet)
    called = f"rank {left.rank} called {named(operation)} ({sources.place(operation.origin)})"
    text = f"{called} and had it back, and {unmet} never called it"
    calls = [(rank, supervisor.views[rank].calls[-1:]) for rank in left.unmet]
    last = [
        f"{named(call)} on rank {rank} ({sources.place(call.origin)})"
        for rank, found in calls
        for call in found
    ]
    if last:
        text += f"; what was called past the Groups there was last {listed(last)}"
    elif is_foreign(operation):
        text = f"{called} and {unmet} never did, but handed over as many collectives: it met one "
        text += "that came from torch itself, as those of its DDP do"
    verdict = Verdict(Fault.MISMATCH, text, ADVICE[Aspect.QUEUE], left.unmet, is_proof=True)
    lead = (
        "every rank has returned, but the numbers are wrong: an operation met something else "
        "that was handed to the same process group"
    )
    return Mismatch(f"{lead}. {verdict}", verdict=verdict, **_evidence(supervisor))


def run_timeout(supervisor: Supervisor, verdict: Verdict, timeout_s: float) -> RunTimeout:
    """The error of a run that is not over after `timeout_s`."""
    message = f"the run did not end within {timeout_s:g} s: {verdict}\n\n"
    message += _where_each_rank_is(supervisor)
    return RunTimeout(message, verdict=verdict, **_evidence(supervisor))


def interrupted(supervisor: Supervisor) -> Interrupted:
    """Stop, with what every rank was doing."""
    verdict = doctor.diagnose_now(supervisor.views)
    message = f"stopped: {verdict}\n\n{_where_each_rank_is(supervisor)}"
    return Interrupted(message, _positions(supervisor), _texts_of_stacks(supervisor))


def _has_found_a_mismatch(rank: Rank) -> bool:
    return isinstance(rank.report, Raised) and rank.report.type_name == Disagreement.__name__


def _is_consequence(rank: Rank) -> bool:
    """Whether what a rank did can have come of another one's failure."""
    return not isinstance(rank.report, Raised) or rank.report.came_from_a_communication


def _blame(supervisor: Supervisor, number: int) -> tuple[bool, bool, float]:
    """Sorts failures, the cause first: errors of a rank's own, deaths, and the earliest.

    A rank that raises keeps its connections open until the driver lets go. So a death is never a
    consequence, but a communication that failed is one.
    """
    rank = supervisor.ranks[number]
    died = rank.stage is Stage.DIED
    comes_of_another = isinstance(rank.report, Raised) and rank.report.came_from_a_communication
    return (comes_of_another, not died, rank.ended_s)


def _what_happened(number: int, rank: Rank) -> str:
    if isinstance(rank.report, Raised):
        where = "" if rank.report.site is None else f" at {sources.place(rank.report.site)}"
        return f"rank {number} raised {rank.report.type_name}{where}: {rank.report.message}"
    return f"rank {number} died: {cause_of_death(rank.process.process.exitcode)}"


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
        said = _GLOOS_LINE.sub("", rank.report.message.partition("\n")[0]).partition(_GUESS)[0]
        broken = [each for each in supervisor.timeline[number].operations if each.failed]
        where = f" in {named(broken[0])} ({sources.place(broken[0].origin)})" if broken else ""
        return f"raised {rank.report.type_name}{where}: {said}"
    if rank.stage is Stage.DIED:
        return f"died: {cause_of_death(rank.process.process.exitcode)}"
    return _positions(supervisor)[number]


def _where_each_rank_is(supervisor: Supervisor) -> str:
    """The evidence: a table of all ranks, and the stacks of those that are in the function."""
    ranks_at: dict[str, list[int]] = {}
    for number, (rank, stack) in enumerate(zip(supervisor.ranks, supervisor.stacks, strict=True)):
        if text := _frames(rank) or (rank.is_active and stack.text):
            ranks_at.setdefault(text, []).append(number)
    return f"Where each rank is:\n{position.table(supervisor.views)}" + "".join(
        f"\n\nStack of {ranks_named(numbers)}:\n{text}" for text, numbers in ranks_at.items()
    )


def _frames(rank: Rank) -> str:
    """Where the rank raised: the reader's own frames, innermost last."""
    if not isinstance(rank.report, Raised):
        return ""
    return sources.with_cells_named(stacks.own_frames(rank.report.traceback))


def _positions(supervisor: Supervisor) -> list[str]:
    return [position.position_of(view) for view in supervisor.views]


def _texts_of_stacks(supervisor: Supervisor) -> list[str]:
    return [
        stack.text if rank.is_active or rank.stage is Stage.DIED else ""
        for rank, stack in zip(supervisor.ranks, supervisor.stacks, strict=True)
    ]


def _evidence(supervisor: Supervisor) -> dict[str, Any]:
    """What programs can read of a failed run; its timelines go from "go" until now, or to the
    rank's end."""
    zero_s, now_s = supervisor.ready_s or time.monotonic(), time.monotonic()
    timelines = [
        Timeline(timeline.operations, timeline.regions, zero_s, rank.ended_s or now_s)
        for timeline, rank in zip(supervisor.timeline, supervisor.ranks, strict=True)
    ]
    return {
        "timeline": [timeline.shifted(zero_s) for timeline in timelines],
        "logs": [rank.output.log for rank in supervisor.ranks],
        "positions": _positions(supervisor),
        "stacks": _texts_of_stacks(supervisor),
    }
