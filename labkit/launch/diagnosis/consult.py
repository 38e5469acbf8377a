"""Asking the doctor: take evidence, then a verdict, and more evidence where that leaves it open."""

from __future__ import annotations

from labkit.launch import doctor
from labkit.launch.doctor import Fault, Verdict
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.ranks.rank import ALL


def consult(supervisor: Supervisor, patience_s: float) -> Verdict:
    """Examine the ranks, and say what keeps the run from ending.

    Where everything seems posted and yet nothing moves, and ranks have used torch.distributed past
    their Groups, all of its record is read: two different operations may have met there.
    """
    supervisor.examine(patience_s=patience_s)
    verdict = doctor.diagnose(supervisor.views)
    has_foreign = any(view.recorded.operations for view in supervisor.views)
    if verdict.fault is Fault.UNDER_WAY and has_foreign:
        supervisor.examine(ALL, patience_s)
        verdict = doctor.diagnose(supervisor.views)
    return verdict
