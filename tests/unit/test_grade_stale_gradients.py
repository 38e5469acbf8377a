"""The grader of stale_gradients: its truth is the server's, and every wrong idea has its name."""

import heapq
import random
from pathlib import Path

import pytest

from labkit.data_parallel.parameter_server import Asynchronous, Synchronous
from labkit.grade import check
from labkit.grade.graders.stale_answers import wrong_form, wrong_timetable, wrong_updates
from labkit.grade.graders.stale_gradients import GRADER
from labkit.grade.graders.stale_questions import arrivals_of
from labkit.grade.graders.stale_replay import replay
from labkit.grade.graders.stale_theories import ASYNCHRONOUS, FIRST_K, simulate
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "stale_gradients"


def asynchronous(arrivals):
    """By looking back for the worker's last arrival."""
    updates = []
    for at, worker in enumerate(arrivals):
        before = arrivals[:at][::-1]
        age = before.index(worker) if worker in before else at
        updates.append([age, at + 1])
    return updates


def first_k(arrivals, k):
    """With the set of those who have old parameters."""
    version, old, ages, fresh, updates = 0, set(), {}, 0, []
    for worker in arrivals:
        age = ages.pop(worker, 0) if worker in old else 0
        old.discard(worker)
        if age == 0:
            fresh += 1
            ages[worker] = None
        if fresh == k:
            version, fresh = version + 1, 0
            waiting = {each for each, its in ages.items() if its is None}
            for each in waiting:
                del ages[each]
            for each in set(arrivals) - waiting:
                old.add(each)
                ages[each] = ages.get(each, 0) + 1
        updates.append((age, version))
    return tuple(updates)


def timetable(seconds, num_updates):
    """An event queue."""
    queue = [(its, worker, 0) for worker, its in seconds.items()]
    heapq.heapify(queue)
    updates = []
    for version in range(num_updates):
        at, worker, held = heapq.heappop(queue)
        updates.append((worker, version - held))
        heapq.heappush(queue, (at + seconds[worker], worker, version + 1))
    return updates


def test_other_right_answers_pass():
    verdict = check(NAME, [asynchronous, first_k, timetable], workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize(
    ("arrivals", "mode", "updates"),
    [
        ([1, 1, 1], Asynchronous(), [(0, 1), (0, 2), (0, 3)]),
        ([1, 2, 1, 2], Asynchronous(), [(0, 1), (1, 2), (1, 3), (1, 4)]),
        ([1, 1, 1, 2, 1], Asynchronous(), [(0, 1), (0, 2), (0, 3), (3, 4), (1, 5)]),
        ([2, 1, 1, 2], Synchronous(), [(0, 0), (0, 1), (0, 1), (0, 2)]),
        ([1, 2, 3, 3, 1], Synchronous(2), [(0, 0), (0, 1), (1, 1), (0, 1), (0, 2)]),
        ([1, 1, 2, 2], Synchronous(1), [(0, 1), (0, 2), (2, 2), (0, 3)]),
    ],
)
def test_labkits_server_writes_down_what_was_worked_out_by_hand(arrivals, mode, updates):
    assert replay(arrivals, mode) == updates


def test_a_replay_that_would_leave_a_worker_waiting_is_a_mistake():
    with pytest.raises(AssertionError, match=r"workers \[1\] wait"):
        replay([2, 1, 1], Synchronous())


@pytest.mark.parametrize("seed", range(12))
def test_the_right_simulation_is_the_server_and_each_theory_is_told_from_all_others(seed):
    questions = GRADER.questions(random.Random(seed))
    for function, theories in (("asynchronous", ASYNCHRONOUS), ("first_k", FIRST_K)):
        its = [q for q in questions if q.function == function]
        right = [(q, simulate(q.known.arrivals, q.known.k)) for q in its]
        assert wrong_updates(right) is None
        for theory in theories:
            answered = [(q, theory.updates(q.known.arrivals, q.known.k)) for q in its]
            assert wrong_updates(answered).diagnosis == theory.name
    assert len({theory.name for theory in (*ASYNCHRONOUS, *FIRST_K)}) == 13


@pytest.mark.parametrize("seed", range(12))
def test_a_timetable_is_wrong_by_its_order_first_and_then_by_the_same_theories(seed):
    questions = [q for q in GRADER.questions(random.Random(seed)) if q.function == "timetable"]
    assert wrong_timetable([(q, timetable(*q.arguments)) for q in questions]) is None
    own_counts = ASYNCHRONOUS[0]
    answered = []
    for question in questions:
        arrivals = question.known.arrivals
        ages = [age for age, _ in own_counts.updates(arrivals, 0)]
        answered.append((question, list(zip(arrivals, ages))))
    assert wrong_timetable(answered).diagnosis == own_counts.name
    slowest = [(q, [(max(q.arguments[0]), 0)] * q.arguments[1]) for q in questions]
    assert wrong_timetable(slowest).diagnosis == "another order of arrivals"


@pytest.mark.parametrize("seed", range(30))
def test_questions_have_stragglers_late_gradients_and_no_ties(seed):
    questions = GRADER.questions(random.Random(seed))
    late = [q for q in questions if q.function == "first_k" and q.known.k == 2]
    assert all(any(age > 0 for age, _ in q.known.updates) for q in late)
    assert any(age > 4 for q in questions for age, _ in q.known.updates)
    for question in questions:
        if question.function != "timetable":
            continue
        pace, num_updates = question.arguments
        times = sorted(i * its for its in pace.values() for i in range(1, num_updates + 1))
        gaps = [b - a for a, b in zip(times, times[1:])]
        assert min(gaps[:num_updates]) > 1e-4, "no rounding decides who is first"
        assert question.known.arrivals == arrivals_of(pace, num_updates)


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        (None, "returns something else"),
        ([0, 1, 2, 3], "returns something else"),
        ([(0, 1.0)] * 4, "returns something else"),
        ([(0, True)] * 4, "returns something else"),
        ([(0, 1)] * 3, "not one pair for each gradient"),
        ([[0, 1]] * 4, None),
    ],
)
def test_the_form_of_an_answer(answer, diagnosis):
    question = GRADER.questions(random.Random(0))[0]
    assert len(question.known.arrivals) == 4
    finding = wrong_form(question, answer)
    assert (finding and finding.diagnosis) == diagnosis


SETTING = """
{imports}

def asynchronous(arrivals):
    {attempt}
    return [(0, 0) for _ in arrivals]

def first_k(arrivals, k):
    return asynchronous(arrivals)

def timetable(seconds, num_updates):
    return asynchronous(list(range(num_updates)))
"""
LOOKED_UP, RAN = "calls the answer itself", "runs something instead of answering"
ATTEMPTS = {
    "from labkit.grade.graders.stale_theories import simulate": ("simulate(arrivals)", LOOKED_UP),
    "from labkit.grade.graders import stale_replay": ("stale_replay.replay([], 0)", LOOKED_UP),
    "import labkit": ("labkit.run(print, 2)", RAN),
}


@pytest.mark.parametrize("imports", ATTEMPTS)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(imports, tmp_path):
    call, diagnosis = ATTEMPTS[imports]
    attempt = f"try: {call}\n    except Exception: pass"
    file = tmp_path / "mine.py"
    file.write_text(SETTING.format(imports=imports, attempt=attempt))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict
