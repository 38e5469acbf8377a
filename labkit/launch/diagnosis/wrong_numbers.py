"""Errors of runs that came back, in which torch combined what did not belong together.

Found when all ranks have returned, from what each of them handed to torch past its Groups
(comm/recorded.py), and from operations that came back though not all had called them
(driver/left_over.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.comm import Timeline
from labkit.comm.agreement.difference import ADVICE, Aspect
from labkit.comm.recorded import Differing, is_foreign
from labkit.comm.words import listed, named, ranks_named
from labkit.launch import doctor, sources
from labkit.launch.diagnosis import attached
from labkit.launch.diagnosis.verdict import Fault, Verdict
from labkit.launch.driver.left_over import Left
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.errors import Mismatch

NOT_ALIKE = (
    "every rank has returned, but the numbers are wrong: torch.distributed was called past the "
    "Groups, and in silence it combined operations that do not match"
)
MIXED_UP = (
    "every rank has returned, but the numbers may be wrong: an operation met something else "
    "that was handed to the same process group"
)


def silent_mismatch(supervisor: Supervisor, differing: Differing) -> Mismatch:
    """The error of a run that came back, but in which torch mixed up different operations."""
    verdict = doctor.diagnose(supervisor.evidence.views)
    # A rank did not answer when it was asked for the lines, or torch has overwritten them since.
    if verdict.fault is not Fault.MISMATCH:
        verdict = not_alike(differing)
    return Mismatch(f"{NOT_ALIKE}. {verdict}", verdict=verdict, **attached.to_error(supervisor))


def not_alike(differing: Differing) -> Verdict:
    """On what torch combined, where its lines are not known."""
    text = f"{differing}; by which lines could not be found out"
    return Verdict(Fault.MISMATCH, text, "", tuple(sorted(differing.ranks)), is_proof=True)


def mixed_up(supervisor: Supervisor, left: Left) -> Mismatch:
    """The error of a run that came back, in which an operation met one that nobody knows of."""
    verdict = met_something_else(left, supervisor.evidence.calls)
    return Mismatch(f"{MIXED_UP}. {verdict}", verdict=verdict, **attached.to_error(supervisor))


def met_something_else(left: Left, calls: Sequence[Timeline]) -> Verdict:
    """calls: by rank, of torch's functions."""
    operation, unmet = left.operation, ranks_named(left.unmet)
    called = f"rank {left.rank} called {named(operation)} ({sources.place(operation.origin)})"
    text = f"{called} and had it back, and {unmet} never called it"
    last = [
        f"{named(call)} on rank {rank} ({sources.place(call.origin)})"
        for rank in left.unmet
        for call in calls[rank].operations[-1:]
    ]
    if last:
        text += f"; what was called past the Groups there was last {listed(last)}"
    elif is_foreign(operation):
        text = f"{called} and {unmet} never did, but handed over as many collectives: it met one "
        text += "that came from torch itself, as those of its DDP do"
    return Verdict(Fault.MISMATCH, text, ADVICE[Aspect.QUEUE], left.unmet, is_proof=True)
