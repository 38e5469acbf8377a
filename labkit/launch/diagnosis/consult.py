"""Asking the doctor: take evidence, then a verdict, and more evidence where that leaves it open."""

from __future__ import annotations

from labkit import doctor
from labkit.doctor.verdict import Fault, Verdict
from labkit.launch.driver.evidence import Evidence
from labkit.launch.ranks.rank import ALL


def consult(evidence: Evidence, patience_s: float) -> Verdict:
    """Examine the ranks, and say what keeps the run from ending.

    Where everything seems posted and yet nothing moves, and ranks have used torch.distributed past
    their Groups, all of its record is read: two different operations may have met there.
    """
    verdict = examined(evidence, patience_s)
    has_foreign = any(view.recorded.operations for view in evidence.views)
    if verdict.fault is Fault.UNDER_WAY and has_foreign:
        evidence.examine(ALL, patience_s)
        found = doctor.diagnose_now(evidence.views)
        return found if found.fault is Fault.MISMATCH else verdict
    return verdict


def examined(evidence: Evidence, patience_s: float) -> Verdict:
    """The verdict on fresh evidence. That a wait is in vain, two examinations must say.

    A rank's journal and torch's record are read one after another, and it may go on in
    between: what they say together need never have been true. What two examinations say was true
    from the first one's end to the second one's beginning, of all ranks at once.
    """
    evidence.examine(patience_s=patience_s)
    first = doctor.diagnose_now(evidence.views)
    if first.fault not in (Fault.LEFT, Fault.CIRCLE):
        return first
    evidence.examine(patience_s=patience_s)
    second = doctor.diagnose_now(evidence.views)
    if second == first or second.fault not in (Fault.LEFT, Fault.CIRCLE):
        return second
    return Verdict(Fault.UNDER_WAY, "ranks go on: two looks in a row found different waits")
