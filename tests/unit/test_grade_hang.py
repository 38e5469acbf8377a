"""Runs whose time is up although the code under test is not to blame, or not alone."""

import dataclasses
from types import SimpleNamespace

import pytest

from labkit.comm.operation import Region, Site, Timeline
from labkit.grade import answers
from labkit.grade.answering import QUESTION
from labkit.grade.evidence import Attempt, Case, CaseEvidence, collect
from labkit.grade.exchange import Record
from labkit.grade.hang import OF_A_BUSY_MACHINE, STILL_AT_WORK, explain_hang
from labkit.grade.harness import REGION
from labkit.grade.judge import judge
from labkit.grade.moving import was_moving
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome
from labkit.launch.errors import Deadlock, RunTimeout
from tests.an_operation import an_operation

LINE = Site("/home/someone/mine.py", 3, "mine")
MACHINERY = '  File "labkit/grade/exchange.py", line 23 in <module>\n'
IMPORTS = '  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load\n'
LEARNERS = '  File "/home/someone/mine.py", line 3 in <module>\n'


RETURNED = Record(None, "Tensor", [], False, "", "", "", [])
MADE_UP = Case("made up", ((), ()), (0.0, 0.0))
UNDER_WAY = CaseEvidence(MADE_UP, (None, None), ((), ()))
OVER = CaseEvidence(MADE_UP, (RETURNED, RETURNED), ((), ()))


def hang(stack, evidence, was_moving=False):
    failure = SimpleNamespace(stacks=[stack, stack], timeline=[])
    return explain_hang(Attempt(2, (), was_moving=was_moving), evidence, failure)


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
    ("asked_s", "diagnosis"), [(2.5, STILL_AT_WORK), (0.5, "does not come to an end")]
)
def test_a_question_loops_only_if_it_was_asked_long_before_the_time_was_up(asked_s, diagnosis):
    timeline = Timeline([], [Region(QUESTION, 0.4, 0.5), Region(QUESTION, asked_s, None)], 0.0, 3.0)
    failure = RunTimeout("time is up", stacks=[LEARNERS], timeline=[timeline])
    finding = answers._no_answer(failure, "f(2)", 3.0)
    assert finding.diagnosis == diagnosis and (finding.where is None) is (asked_s == 2.5)


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
    failure = SimpleNamespace(stacks=[stack])
    assert explain_hang(Attempt(1, ()), evidence, failure).diagnosis == diagnosis


def waiting_in(sequence, group=(0, 1), kind="all_reduce"):
    operation = an_operation(kind, sequence, at=LINE, group=group, group_name=str(group))
    return (operation,)


@pytest.mark.parametrize("sequences", [(5, 5), (5, 6)])
def test_a_collective_that_every_rank_has_begun_is_slow_and_misses_nobody(sequences):
    operations = tuple(map(waiting_in, sequences))
    finding = hang(LEARNERS, dataclasses.replace(UNDER_WAY, operations=operations))
    assert finding.diagnosis == "does not finish what every rank has begun"
    assert "rank None" not in f"{finding}" and "busy" in finding.explanation


def test_collectives_of_two_groups_are_not_under_way():
    operations = (waiting_in(5), waiting_in(5, group=(1, 0)))
    finding = hang(LEARNERS, dataclasses.replace(UNDER_WAY, operations=operations))
    assert finding.diagnosis == "a collective that not every rank calls"
    assert "rank 0 waits" in finding.explanation and "rank 1 never came" in finding.explanation


@pytest.mark.parametrize("first", ["never began", "does not end in time", STILL_AT_WORK])
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
    finding = hang(MACHINERY, OVER)
    assert finding.diagnosis == "does not end after its last return"
    assert finding.first_seen == "2 ranks, made up"


def test_who_stands_in_the_function_has_not_returned_from_it_whatever_has_been_recorded_since():
    finding = hang(LEARNERS, OVER)
    assert finding.diagnosis == "loops without communicating" and finding.where.line == 3


@pytest.mark.parametrize(("stack", "was_moving"), [(MACHINERY, False), (LEARNERS, True)])
def test_each_stack_stands_below_its_rank(stack, was_moving):
    details = hang(stack, OVER, was_moving).details
    assert details == "\n".join(f"rank {rank} was here:\n{stack.rstrip()}" for rank in range(2))


def test_a_rank_without_a_stack_was_in_no_line_of_the_learners():
    assert hang("", OVER).details.splitlines()[1] == "rank 1 was in no line of yours"


@pytest.mark.parametrize("evidence", [UNDER_WAY, OVER])
def test_of_ranks_that_still_move_no_more_is_said_than_that_and_where_they_were(evidence):
    finding = hang(LEARNERS, evidence, was_moving=True)
    assert (finding.diagnosis, finding.where, finding.hint) == (STILL_AT_WORK, None, None)
    assert "loop that communicates without end, or a machine that is busy" in finding.explanation


def test_a_file_that_had_only_begun_to_load_is_not_said_to_loop():
    assert hang(LEARNERS + MACHINERY, None, was_moving=True).diagnosis == "never began"


def timed_out(*timelines, kind=RunTimeout):
    return kind("time is up", timeline=timelines, stacks=[LEARNERS] * len(timelines))


def journal(*operations, case_s=(0.5, None), ended_s=10.0):
    """Of a rank that was in case 0 between two times, and was looked at, or over, at `ended_s`."""
    return Timeline(list(operations), [Region(f"{REGION}0", *case_s)], 0.0, ended_s)


@pytest.mark.parametrize(
    ("timeline", "moves"),
    [
        (journal(), False),
        (journal(case_s=(6.0, None)), True),
        (journal(case_s=(0.5, 6.0)), True),
        (journal(an_operation(sequence=4)), False),
        (journal(an_operation(sequence=6)), True),
        (journal(an_operation(sequence=4, done_s=6.0)), True),
        (journal(ended_s=4.0), True),  # of 10 s: they had just begun
        (Timeline(), True),
    ],
)
def test_ranks_move_if_something_happened_in_the_last_half_of_their_time(timeline, moves):
    assert was_moving(timed_out(timeline), 10.0) is moves


def test_ranks_that_have_returned_long_ago_stand_still():
    assert not was_moving(timed_out(journal(case_s=(0.5, 1.0), ended_s=1.0), journal()), 10.0)


def test_a_deadlock_is_proved_whenever_it_began():
    assert not was_moving(timed_out(journal(an_operation(sequence=6)), kind=Deadlock), 10.0)


def collected(failure):
    """The evidence of case 0, of which every rank has left a record."""
    exchange = SimpleNamespace(get_record=lambda case, rank: RETURNED)
    return collect([MADE_UP], 2, exchange, failure, timeout_s=10.0)


def test_records_that_came_after_the_journals_were_read_do_not_count():
    timelines = journal(case_s=(0.5, 1.0)), journal()
    (evidence,) = collected(timed_out(*timelines)).cases
    assert evidence.records == (RETURNED, None)
    (evidence,) = collected(timed_out(*timelines, kind=Deadlock)).cases
    assert evidence.records == (RETURNED, RETURNED)


def test_nothing_more_is_read_into_a_busy_machine_by_an_exercise():
    class Grader:
        def judge(self, evidence):
            raise AssertionError("a case that is not over")

        def refine(self, finding, evidence, attempt):
            raise AssertionError(finding)

    attempt = collected(timed_out(journal(case_s=(6.0, None)), journal()))
    assert judge(attempt, Grader()).diagnosis == STILL_AT_WORK in OF_A_BUSY_MACHINE


def test_world_sizes_are_not_compared_where_the_machine_is_busy():
    class Grader(OnRanks):
        world_sizes = (2,)

        def cases(self, world_size, rng):
            return []

        def _tried(self, *_):
            return Finding(Outcome.HUNG, STILL_AT_WORK, "why")

        def compare(self, finding, world_size, passed):
            raise AssertionError(finding)

    assert Grader().grade(None, 0, 10.0).finding.diagnosis == STILL_AT_WORK
