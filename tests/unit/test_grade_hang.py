"""Runs whose time is up although the code under test is not to blame, or not alone."""

from types import SimpleNamespace

import pytest

from labkit.comm.operation import Site
from labkit.grade import answers
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.exchange import Record
from labkit.grade.hang import explain_hang
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome
from labkit.launch.errors import RunTimeout
from tests.an_operation import an_operation

LINE = Site("/home/someone/mine.py", 3, "mine")
MACHINERY = '  File "labkit/grade/exchange.py", line 23 in <module>\n'
IMPORTS = '  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load\n'
LEARNERS = '  File "/home/someone/mine.py", line 3 in <module>\n'


def hang(stack, evidence):
    failure = SimpleNamespace(stacks=[stack, stack], timeline=[])
    return explain_hang(Attempt(2, ()), evidence, failure)


def test_code_that_loads_for_ever_is_told_from_processes_that_never_came_to_it():
    loading, starting = hang(LEARNERS + MACHINERY, None), hang(MACHINERY, None)
    assert loading.diagnosis == "does not finish loading" and loading.where.line == 3
    assert starting.diagnosis == "never began" and "machine is busy" in starting.explanation


def test_a_file_that_is_still_importing_a_library_has_not_begun():
    importing = hang(LEARNERS + IMPORTS + MACHINERY, None)
    assert importing.diagnosis == "never began" and importing.where is None
    assert "importing libraries" in importing.explanation


def test_a_question_that_no_line_of_the_learners_holds_up_is_not_said_to_loop():
    failure = RunTimeout("time is up", stacks=[LEARNERS + IMPORTS + MACHINERY])
    finding = answers._no_answer(failure, "f(2)", 3.0)
    assert finding.diagnosis == "never began" and finding.where is None


@pytest.mark.parametrize(
    ("stack", "diagnosis"),
    [
        (LEARNERS + MACHINERY, "loops without communicating"),
        (MACHINERY, "does not end in time"),
        (LEARNERS + IMPORTS + MACHINERY, "does not end in time"),
    ],
)
def test_a_rank_that_is_in_none_of_the_readers_lines_does_not_loop(stack, diagnosis):
    evidence = CaseEvidence(Case("made up", ((),), (0.0,)), (None,), ((),))
    failure = SimpleNamespace(stacks=[stack], timeline=[SimpleNamespace(operations=[])])
    assert explain_hang(Attempt(1, ()), evidence, failure).diagnosis == diagnosis


def waiting_in(sequence, group=(0, 1), kind="all_reduce"):
    operation = an_operation(kind, sequence, at=LINE, group=group, group_name=str(group))
    return SimpleNamespace(operations=[operation])


@pytest.mark.parametrize("sequences", [(5, 5), (5, 6)])
def test_a_collective_that_every_rank_has_begun_is_slow_and_misses_nobody(sequences):
    evidence = CaseEvidence(Case("made up", ((), ()), (0.0, 0.0)), (None,) * 2, ((), ()))
    failure = SimpleNamespace(stacks=[LEARNERS] * 2, timeline=[*map(waiting_in, sequences)])
    finding = explain_hang(Attempt(2, ()), evidence, failure)
    assert finding.diagnosis == "does not finish what every rank has begun"
    assert "rank None" not in f"{finding}" and "busy" in finding.explanation


def test_collectives_of_two_groups_are_not_under_way():
    evidence = CaseEvidence(Case("made up", ((), ()), (0.0, 0.0)), (None,) * 2, ((), ()))
    timeline = [waiting_in(5), waiting_in(5, group=(1, 0))]
    failure = SimpleNamespace(stacks=[LEARNERS] * 2, timeline=timeline)
    finding = explain_hang(Attempt(2, ()), evidence, failure)
    assert finding.diagnosis == "a collective that not every rank calls"
    assert "rank 0 waits" in finding.explanation and "rank 1 never came" in finding.explanation


@pytest.mark.parametrize("first", ["never began", "does not end in time"])
@pytest.mark.parametrize("second", ["never began", "sums over the wrong ranks", None])
def test_a_launch_on_a_busy_machine_is_given_longer_once_and_then_believed(
    monkeypatch, first, second
):
    told, patience = [first, second], []

    class Grader(OnRanks):
        world_sizes = (2,)

        def cases(self, world_size, rng):
            return []

        def _attempt(self, code, cases, world_size, timeout_s, times=1.0):
            patience.append(times * timeout_s)

    def judge(attempt, grader):
        diagnosis = told.pop(0)
        return diagnosis and Finding(Outcome.HUNG, diagnosis, "why")

    monkeypatch.setattr("labkit.grade.on_ranks.judge", judge)
    finding = Grader().grade(None, 0, 10.0).finding
    assert patience == [10.0, 40.0]
    assert (finding and finding.diagnosis) == second


def test_time_that_is_up_after_every_rank_has_returned_is_a_finding_of_its_own():
    returned = Record(None, "Tensor", [], False, "", "", "", [])
    evidence = CaseEvidence(Case("made up", ((), ()), (0.0, 0.0)), (returned,) * 2, ((), ()))
    finding = hang(LEARNERS, evidence)
    assert finding.diagnosis == "does not end after its last return"
    assert finding.first_seen == "2 ranks, made up"
