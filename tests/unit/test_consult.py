"""Evidence is read piece by piece: what a single look finds need not have been true at once."""

from dataclasses import replace

from labkit.comm import Site
from labkit.comm.recorder import Recorded
from labkit.doctor import diagnose_now
from labkit.doctor.verdict import Fault, Stage
from labkit.doctor.waiting import View
from labkit.launch.listen import confirmed_diagnosis, examine_and_diagnose
from tests.unit.test_doctor import WAITS

FOREIGN = replace(WAITS, group=(0, 1), group_name="torch.distributed")
RECEIVES = replace(WAITS, group=(0, 1), kind="recv", peer=0)
NOTHING_YET = Recorded(is_idle=True, is_known=True)
IN_IT = Recorded([FOREIGN], {"torch.distributed": 1}, is_idle=True, is_known=True, awaited=0)
THROUGH = Recorded([], {"torch.distributed": 1}, is_idle=True, is_known=True)

# Rank 1 tells what torch has recorded, then comes through torch's all_reduce to a Group's recv,
# then its journal is read. Rank 0 was asked while it was in all_reduce, and is late to its send.
TORN = [
    View(Stage.RUNNING, recorded=IN_IT),
    View(Stage.RUNNING, [RECEIVES], recorded=NOTHING_YET),
]
WHOLE = [
    View(Stage.RUNNING, recorded=replace(THROUGH, is_idle=False)),
    View(Stage.RUNNING, [RECEIVES], recorded=THROUGH),
]


class Looks:
    """Evidence that is another one at each examination."""

    def __init__(self, *states):
        self.states, self.views = list(states), []

    def examine(self, request=None, patience_s=None):
        self.views = self.states.pop(0)


def test_a_cycle_of_evidence_from_different_moments_is_gone_at_the_second_look():
    verdict = confirmed_diagnosis(Looks(TORN, WHOLE), 1)
    assert not verdict.is_proof
    assert verdict.fault is Fault.SLOW


def test_a_cycle_that_two_looks_find_is_a_proof():
    verdict = confirmed_diagnosis(Looks(TORN, TORN), 1)
    assert verdict.is_proof
    assert verdict.fault is Fault.CYCLE


def test_waits_that_differ_from_look_to_look_are_progress():
    again = replace(FOREIGN, sequence=2)
    later = [replace(TORN[0], recorded=replace(IN_IT, operations=[again])), TORN[1]]
    verdict = confirmed_diagnosis(Looks(TORN, later), 1)
    assert not verdict.is_proof
    assert verdict.fault is Fault.UNDER_WAY


def test_what_is_no_accusation_takes_one_look():
    assert confirmed_diagnosis(Looks(WHOLE), 1).fault is Fault.SLOW


def test_what_torch_has_of_all_ranks_is_asked_for_mismatches_only():
    both = [replace(TORN[0], recorded=replace(IN_IT, operations=[FOREIGN])) for _ in range(2)]
    assert confirmed_diagnosis(Looks(both), 1).fault is Fault.UNDER_WAY
    assert examine_and_diagnose(Looks(both, TORN), 1).fault is Fault.UNDER_WAY


def test_torchs_record_has_no_order_of_calls():
    lines = Site("a.py", 1, "f", "dist.broadcast(x)"), Site("a.py", 2, "f", "dist.broadcast(y)")
    views = [
        View(
            Stage.RUNNING,
            recorded=Recorded(
                [replace(FOREIGN, sequence=n, origin=lines[(n + r) % 2]) for n in (1, 2)]
            ),
        )
        for r in (0, 1)
    ]
    assert diagnose_now(views).fault is not Fault.MISMATCH
