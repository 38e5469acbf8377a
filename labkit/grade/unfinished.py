"""How a case ended that did not return on every rank: a crash, a hang, or calls that do not match.

The doctor's verdict, the journals and the tracebacks say it; the learner's line is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from labkit.comm.callers import is_of_a_library
from labkit.comm.operation import Operation, Site
from labkit.comm.words import ranks_named, verb
from labkit.doctor import sources
from labkit.doctor.verdict import Fault
from labkit.doctor.waiting import blocked_in
from labkit.grade.harness import MEETING
from labkit.grade.observed import Observed
from labkit.grade.outcome import Finding, Outcome
from labkit.launch.errors import Mismatch, RankError, RunError, RunTimeout

_HUNG = {
    Fault.CYCLE: "ranks wait for each other",
    Fault.LEFT: "waits for a rank that has returned",
    Fault.BUSY: "loops without communicating",
}


def how_it_ended(failure: RunError, observed: Observed) -> Finding:
    """What any exercise can say of it."""
    if isinstance(failure, RankError):
        return _crash(failure, observed)
    has_returned = [rank for rank, seen in enumerate(observed.ranks) if seen.returned]
    waits = {
        rank: operation
        for rank, timeline in enumerate(failure.timeline)
        if (operation := _waiting_in(timeline.operations)) is not None
    }
    if isinstance(failure, Mismatch) and has_returned:
        # The other ranks meet already, and found that this one means something else.
        waits = {
            rank: timeline.operations[-1]
            for rank, timeline in enumerate(failure.timeline)
            if rank not in has_returned and timeline.operations
        }
    if waits and has_returned and not observed.returned:
        return _left_behind(waits, has_returned, observed)
    verdict = failure.verdict
    explanation = _unnumbered(str(verdict)) if verdict is not None else str(failure)
    rank = verdict.ranks[0] if verdict is not None and verdict.ranks else min(waits, default=0)
    where = waits[rank].origin if rank in waits else own_site(_stack(failure, rank))
    if where is None and failure.timeline and failure.timeline[rank].operations:
        where = failure.timeline[rank].operations[-1].origin
    details = "\n".join(f"rank {r} {place}" for r, place in enumerate(failure.positions))
    if isinstance(failure, Mismatch):
        name, outcome = "ranks mean different operations", Outcome.WRONG
    else:
        fault = None if verdict is None else verdict.fault
        name = "does not end in time" if fault is None else _HUNG.get(fault, "does not end in time")
        outcome = Outcome.HUNG
        if name == "ranks wait for each other":
            kinds = {operation.kind for operation in waits.values()}
            if len(waits) == observed.n and kinds <= {"send", "recv"} and len(kinds) == 1:
                kind = kinds.pop()
                other = "receives" if kind == "send" else "sends"
                name = f"every rank is in {kind}: nobody {other}"
    seen = observed.label if any(timeline.regions for timeline in failure.timeline) else ""
    return Finding(outcome, name, explanation, seen, 3, where, details=_unnumbered(details))


def _waiting_in(operations: Sequence[Operation]) -> Operation | None:
    """The operation of the learner's that a rank blocks on."""
    operation = blocked_in(operations)
    return None if operation is None or operation.label == MEETING else operation


def _left_behind(waits: dict[int, Operation], returned: list[int], observed: Observed) -> Finding:
    """Some ranks wait in an operation, while others have returned from the function."""
    rank, operation = next(iter(waits.items()))
    text = f"rank {rank} waits in {_unnumbered(operation.name)} ({sources.place(operation.origin)})"
    text += f", and {ranks_named(returned)} {verb(returned, 'has')} returned"
    if operation.is_collective:
        name = "a collective that not every rank calls"
        text += " without calling it. Every member of a group makes the same calls"
    else:
        name = (
            f"waits for a message that nobody {'sends' if operation.kind == 'recv' else 'receives'}"
        )
        text += ". Count the steps of both ranks, and compare whom each names as its partner"
    return Finding(Outcome.HUNG, name, text, observed.label, 3, operation.origin)


def _unnumbered(text: str) -> str:
    """Without numbers of operations, which count those of earlier cases too."""
    return re.sub(r" #\d+", "", text)


def _crash(failure: RankError, observed: Observed) -> Finding:
    error, trace = failure.exception_type, own_frames(failure.traceback)
    site = failure.site
    if site is not None and _is_library(site.file):
        site = own_site(failure.traceback)
    message = failure.traceback.rstrip().rpartition(f"{error}: ")[2]
    message = "" if message == failure.traceback.rstrip() else message
    label = observed.label if observed.n == 1 else f"{observed.label}: rank {failure.rank}"
    seen = label if any(timeline.regions for timeline in failure.timeline) else ""
    if error == "NotImplementedError" and f"raise {error}" in failure.traceback:
        name, why = "a part is still to be written", f"the code raised {error}: {message}"
        return Finding(Outcome.NOT_ATTEMPTED, name, why, seen, where=failure.site, details=trace)
    if error == "SubmissionError":
        return Finding(Outcome.CRASHED, "cannot be called", message, seen, 1, details=trace)
    if error == "ProcessDied":
        name, why = "its process ended", f"{_unnumbered(str(failure).splitlines()[0])}"
    else:
        place = "" if site is None else f" at {sources.place(site)}"
        who = "the function" if observed.n == 1 else f"rank {failure.rank}"
        name, why = f"raises {error}", f"{who} raised {error}{place}: {message}"
    return Finding(Outcome.CRASHED, name, why, seen, 3, site, details=trace)


def is_busy_machine(failure: RunError) -> bool:
    """Whether the time was up while the ranks were still on their way, or before they began.

    Ranks that loop or wait have done nothing that the journals know of for half of the time.
    """
    if not isinstance(failure, RunTimeout) or (failure.verdict and failure.verdict.is_proof):
        return False
    if not any(own_site(stack) for stack in failure.stacks):
        return True
    ended_s = max(timeline.end_s for timeline in failure.timeline)
    begun_s = [o.posted_s for timeline in failure.timeline for o in timeline.operations]
    begun_s += [r.start_s for timeline in failure.timeline for r in timeline.regions]
    return max(begun_s, default=0.0) > ended_s / 2


def _stack(failure: RunError, rank: int) -> str:
    return failure.stacks[rank] if rank < len(failure.stacks) else ""


# As doctor/sources.py shows the files of these packages.
_SHORTENED = ("labkit/", "torch/", "<string>")
# A frame of a notebook's cell has the cell's number for a file (doctor/sources.py).
_FRAME = re.compile(r'  (?:File "([^"]+)"|(Cell \d+)), line (\d+),? in (\S+)')


def _is_library(file: str) -> bool:
    return file.startswith(_SHORTENED) or is_of_a_library(file)


def own_frames(trace: str) -> str:
    """A traceback without the frames of labkit and of libraries; all of it, where none is left."""
    kept, is_own, has_own = [], True, False
    for line in trace.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            is_own = not _is_library(frame[1] or frame[2])
            has_own = has_own or is_own
        elif not line.startswith("    "):
            is_own = True
        if is_own:
            kept.append(line)
    return "\n".join(kept) if has_own else trace


def own_site(stack: str) -> Site | None:
    """The innermost line of a stack that is the learner's."""
    frames = [frame for line in stack.splitlines() if (frame := _FRAME.match(line))]
    for frame in reversed(frames):
        if not _is_library(frame[1] or frame[2]):
            return Site(frame[1] or frame[2], int(frame[3]), frame[4])
    return None
