"""Explain a case that did not return on every rank: a crash, a hang, or mismatched calls.

The explanation comes from the doctor's verdict, the journals and the tracebacks. It names the line
of the learner's code where it can.
"""

from __future__ import annotations

import re

from labkit.comm.callers import is_of_a_library
from labkit.comm.operation import Operation, Site, named, ranks_named, verb
from labkit.doctor import sources
from labkit.doctor.verdict import Fault
from labkit.doctor.waiting import blocked_in
from labkit.grade.harness import MEETING
from labkit.grade.observed import Observed
from labkit.grade.verdict import Finding, Outcome
from labkit.launch.errors import Mismatch, RankError, RunError, RunTimeout

_HUNG = {
    Fault.CYCLE: "ranks wait for each other",
    Fault.LEFT: "waits for a rank that has returned",
    Fault.BUSY: "loops without communicating",
}
_COUNTERPART = {"send": "receives", "recv": "sends"}


def how_it_ended(failure: RunError, observed: Observed) -> Finding:
    """Return the finding for a run that did not end, in any exercise."""
    if isinstance(failure, RankError):
        return _crash(failure, observed)
    verdict = failure.verdict
    assert verdict is not None, "only the error of one rank has none"
    operations = [timeline.operations for timeline in failure.timeline]
    returned = [rank for rank, seen in enumerate(observed.ranks) if seen.returned]
    blocked = {rank: blocked_in(each) for rank, each in enumerate(operations)}
    waits = {rank: each for rank, each in blocked.items() if each and each.label != MEETING}
    if isinstance(failure, Mismatch) and returned:
        # The returned ranks are at the barrier after this case: that is the mismatch.
        going_on = [rank for rank in range(observed.n) if rank not in returned]
        waits = {rank: operations[rank][-1] for rank in going_on if operations[rank]}
    if waits and returned and not observed.returned:
        return _left_behind(waits, returned, observed)
    rank = verdict.ranks[0] if verdict.ranks else min(waits, default=0)
    where = waits[rank].origin if rank in waits else own_site(failure.stacks[rank])
    if where is None and operations[rank]:
        where = operations[rank][-1].origin
    outcome, name = Outcome.HUNG, _HUNG.get(verdict.fault, "does not end in time")
    kinds = {operation.kind for operation in waits.values()}
    if isinstance(failure, Mismatch):
        outcome, name = Outcome.WRONG, "ranks mean different operations"
    elif verdict.fault is Fault.CYCLE and len(waits) == observed.n and len(kinds) == 1:
        kind = kinds.pop()
        if kind in _COUNTERPART:
            name = f"every rank is in {kind}: nobody {_COUNTERPART[kind]}"
    text, positions = str(verdict), [*failure.positions]
    # The operations with which the harness lets ranks meet between two calls are not the learner's.
    met = [rank for rank, each in enumerate(operations) if each and each[-1].label == MEETING]
    through = [rank for rank in met if blocked[rank]]
    for rank in met:
        after = f" after {named(operations[rank][-1])}"
        text, positions[rank] = text.replace(after, ""), positions[rank].replace(after, "")
    for rank in through:
        positions[rank] = "has returned"
    if through and not waits:
        others = [rank for rank in range(observed.n) if rank not in through]
        text = f"{ranks_named(others)} {verb(others, 'has')} not returned from this call"
        text += f"; {ranks_named(through)} {verb(through, 'has')}"
    details = "\n".join(f"rank {r} {place}" for r, place in enumerate(positions))
    return Finding(
        outcome,
        name,
        _unnumbered(text),
        observed.label,
        3,
        where,
        details=_unnumbered(details),
    )


def _left_behind(waits: dict[int, Operation], returned: list[int], observed: Observed) -> Finding:
    """Return the finding where some ranks wait in an operation and others have returned."""
    rank, operation = next(iter(waits.items()))
    text = f"rank {rank} waits in {_unnumbered(operation.name)} ({sources.place(operation.origin)})"
    text += f", and {ranks_named(returned)} {verb(returned, 'has')} returned"
    if operation.is_collective:
        name = "a collective that not every rank calls"
        text += " without calling it. Every member of a group makes the same calls"
    else:
        name = f"waits for a message that nobody {_COUNTERPART[operation.kind]}"
        text += ". Count the steps of both ranks, and compare whom each names as its partner"
    return Finding(Outcome.HUNG, name, text, observed.label, 3, operation.origin)


def _unnumbered(text: str) -> str:
    """Remove the numbers of operations, which count earlier cases too."""
    return re.sub(r" #\d+", "", text)


def _crash(failure: RankError, observed: Observed) -> Finding:
    error, trace = failure.exception_type, own_frames(failure.traceback)
    site = own_site(failure.traceback)
    message = observed.ranks[failure.rank].error.partition(": ")[2].removeprefix(", ")
    said = f": {message}" if message else ""
    seen = observed.label if observed.n == 1 else f"{observed.label}: rank {failure.rank}"
    if error == "NotImplementedError" and f"raise {error}" in failure.traceback:
        name, why = "a part is still to be written", f"the code raised {error}{said}"
        return Finding(Outcome.NOT_ATTEMPTED, name, why, seen, where=site, details=trace)
    place = ", where it is called or its result is read"
    if site is not None:
        place = f" at {sources.place(site)}"
    who = "the function" if observed.n == 1 else f"rank {failure.rank}"
    if error == "ProcessDied":
        name, why = "its process ended", _unnumbered(str(failure).splitlines()[0])
    elif error == "BdbQuit":
        name = "stops in the debugger"
        why = f"{who} came to a breakpoint{place}. Ranks have no terminal to ask at. Print what "
        why += "you want to see: the verdict shows it"
    else:
        name, why = f"raises {error}", f"{who} raised {error}{place}{said}"
        why += ". Define it, or import it" * (error == "NameError")
    hint = 0 if error in _ERRORS_WITHOUT_HINT else 3
    return Finding(Outcome.CRASHED, name, why, seen, hint, site, details=trace)


# Errors that no hint helps with.
_ERRORS_WITHOUT_HINT = ("BdbQuit", "NameError", "ImportError", "ModuleNotFoundError", "SyntaxError")


def is_busy_machine(failure: RunError) -> bool:
    """Return whether a run timed out because the machine is slow, and not because the code hangs.

    True if no rank had reached the learner's code, or if the journals show a new operation or
    region in the second half of the run. Ranks that loop or wait show none.
    """
    if not isinstance(failure, RunTimeout) or (failure.verdict and failure.verdict.is_proof):
        return False
    if not any(own_site(stack) for stack in failure.stacks):
        return True
    ended_s = max(timeline.end_s for timeline in failure.timeline)
    started_s = [o.posted_s for timeline in failure.timeline for o in timeline.operations]
    started_s += [r.start_s for timeline in failure.timeline for r in timeline.regions]
    return max(started_s, default=0.0) > ended_s / 2


# Paths inside these packages begin like this after doctor/sources.py has shortened them.
_LIBRARY_PREFIXES = ("labkit/", "torch/", "<string>")
# A frame of a notebook's cell has the cell's number instead of a file (doctor/sources.py).
_FRAME = re.compile(r'^  (?:File "([^"]+)"|(Cell \d+)), line (\d+),? in (\S+)', re.MULTILINE)


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARY_PREFIXES) or is_of_a_library(file)


def own_frames(trace: str) -> str:
    """Remove the frames of labkit and of libraries from a traceback; "" if no other is there."""
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
    return "\n".join(kept) if has_own else ""


def own_site(stack: str) -> Site | None:
    """Return the innermost line of a stack that is the learner's; None if there is none."""
    for frame in reversed([*_FRAME.finditer(stack)]):
        if not _is_library(frame[1] or frame[2]):
            return Site(frame[1] or frame[2], int(frame[3]), frame[4])
    return None
