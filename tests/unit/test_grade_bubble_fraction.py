"""The grader of bubble_fraction: its truth is the simulation's, and every mistake has its name."""

import itertools
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from labkit.calc.pipeline.bubble import bubble_fraction
from labkit.grade import check
from labkit.grade.graders.bubble_fraction import GRADER
from labkit.grade.graders.bubble_ideas import Idea
from labkit.grade.graders.bubble_questions import (
    CONVENTIONS,
    SCHEDULES,
    Drill,
    draw,
    is_at_the_edge,
    right_bubble,
    right_microbatches,
    share,
)
from labkit.grade.graders.bubble_theories import BUBBLE, MICROBATCHES
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "bubble_fraction"


def bubble(p, m, schedule, virtual, relative_to):
    """By counting: the length of a step, less its work."""
    work = {"zb_h1": 3}.get(schedule, virtual) * m
    length = p * work if schedule == "naive" else work + p - 1
    return (length - work) / (length if relative_to == "total" else work)


def microbatches_for(p, percent, schedule, virtual, relative_to):
    """By trying, with fractions."""
    limit = Fraction(percent, 100)
    step = p if schedule == "interleaved" else 1
    for m in range(p if schedule in ("interleaved", "zb_h1") else 1, 3000, step):
        work = {"zb_h1": 3}.get(schedule, virtual) * m
        idle = (p - 1) * work if schedule == "naive" else p - 1
        if Fraction(idle, work + (idle if relative_to == "total" else 0)) <= limit:
            return m
    return None


def judged(function, answer, seed=0):
    """What comes of answering one function by `answer` of what is known, the other one rightly."""
    rights = dict(GRADER.rights)
    rights[function] = answer
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [rights[each.function](each.known) for each in questions])


def test_other_right_answers_pass():
    verdict = check(NAME, [bubble, microbatches_for], workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(8))
def test_each_mistake_is_known_by_its_answers(seed):
    assert judged("bubble", Idea().bubble, seed) is None
    assert judged("microbatches_for", Idea().fewest, seed) is None
    for function, theories in (("bubble", BUBBLE), ("microbatches_for", MICROBATCHES)):
        for theory in theories:
            finding = judged(function, theory.answer, seed)
            assert finding is not None, theory.name
            assert finding.diagnosis == theory.name
        assert len({theory.name for theory in theories}) == len(theories)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("relative_to", CONVENTIONS)
def test_the_simulation_agrees_with_the_calculator(schedule, relative_to):
    for p, m, v in ((1, 3, 1), (2, 2, 1), (4, 8, 3), (5, 20, 2)):
        virtual = v if schedule == "interleaved" else 1
        drill = Drill(p, schedule, virtual, relative_to, m)
        if schedule == "interleaved":
            m -= m % p
        expected = float(bubble_fraction(p, m, schedule, virtual, relative_to))
        assert right_bubble(drill) == pytest.approx(expected, abs=1e-12)


def test_what_an_interviewer_hears():
    """7/16 of ideal and 7/23 of total; 10 stages and 4 microbatches idle 9 of 13, not 9 of 17."""
    assert right_bubble(Drill(8, "1f1b", 1, "ideal", 16)) == 7 / 16
    assert right_bubble(Drill(8, "1f1b", 1, "total", 16)) == 7 / 23
    assert right_bubble(Drill(10, "gpipe", 1, "total", 4)) == 9 / 13
    assert right_microbatches(Drill(8, "1f1b", 1, "ideal", percent=5)) == 140
    assert right_microbatches(Drill(8, "1f1b", 1, "total", percent=5)) == 133


@pytest.mark.parametrize("seed", range(8))
def test_the_fewest_are_enough_and_one_step_fewer_is_not(seed):
    for question in draw(random.Random(seed)):
        drill = question.known
        if not drill.percent:
            continue
        fewest, limit = right_microbatches(drill), Fraction(drill.percent, 100)
        assert fewest == microbatches_for(*drill.arguments)
        if fewest is None:
            assert drill.schedule == "naive" and share(drill, 50) > limit
            continue
        fewer = fewest - (drill.p if drill.schedule == "interleaved" else 1)
        least = drill.p if drill.schedule in ("interleaved", "zb_h1") else 1
        assert share(drill, fewest) <= limit
        assert fewer < least or share(drill, fewer) > limit


@pytest.mark.parametrize("seed", range(12))
def test_the_traps_are_there(seed):
    drills = [each.known for each in draw(random.Random(seed))]
    for schedule in SCHEDULES:
        asked = {(d.relative_to, bool(d.percent)) for d in drills if d.schedule == schedule}
        assert len(asked) == 4, schedule
        assert any(d.p == 1 for d in drills if d.schedule == schedule)
    assert any(0 < d.m < d.p for d in drills)
    assert any(is_at_the_edge(d) for d in drills if d.percent)
    assert any(not is_at_the_edge(d) for d in drills if d.percent)
    assert any(right_microbatches(d) is None for d in drills if d.percent)
    assert all(d.m % d.p == 0 for d in drills if d.schedule == "interleaved")
    assert all(d.m >= d.p for d in drills if d.schedule == "zb_h1" and d.m)
    assert [each.known for each in draw(random.Random(seed + 100))] != drills


FLOATS = {
    "quotient": lambda p, q: (p - 1) * (1 - q) / q,
    "of ideal first": lambda p, q: (p - 1) / (q / (1 - q)),
    "factor": lambda p, q: (p - 1) * ((1 - q) / q),
}


@pytest.mark.parametrize("form", FLOATS)
@pytest.mark.parametrize("seed", range(6))
def test_quotients_of_floats_are_caught_at_the_edge(form, seed):
    def answer(drill):
        if drill.schedule not in ("1f1b", "gpipe") or drill.relative_to == "ideal" or drill.p == 1:
            return right_microbatches(drill)
        return math.ceil(FLOATS[form](drill.p, drill.percent / 100))

    assert judged("microbatches_for", answer, seed).diagnosis == "rounds at the edge"


def _by_quotient(quotient):
    """Rounded up, and no fewer than ZB-H1 can have."""
    return lambda drill, idle, q: max(drill.p, math.ceil(quotient(idle, q)))


def _by_trying(is_enough):
    """One number of microbatches after the other."""

    def fewest(drill, idle, q):
        first = drill.p if drill.schedule == "zb_h1" else 1
        return next(m for m in itertools.count(first) if is_enough(m, idle, drill.percent))

    return fewest


# From the idle parts, which are thirds of p - 1 for ZB-H1, and the limit.
MORE_FLOATS = {
    "100 times": _by_trying(lambda m, idle, n: 100 * (idle / (m + idle)) <= n),
    "100 times x/(1 + x)": _by_trying(lambda m, idle, n: 100 * (idle / m) / (1 + idle / m) <= n),
    "the idle part": _by_trying(lambda m, idle, n: idle <= n / 100 * (m + idle)),
    "percents": _by_quotient(lambda idle, q: idle * (100 / (100 * q) - 1)),
    "of total, less the idle": _by_quotient(lambda idle, q: idle / q - idle),
    "of total, less one": _by_quotient(lambda idle, q: idle * (1 / q - 1)),
}


@pytest.mark.parametrize("form", MORE_FLOATS)
@pytest.mark.parametrize("seed", range(6))
def test_floats_are_caught_at_the_edge_with_thirds_and_with_7_percent(form, seed):
    def answer(drill):
        if drill.schedule not in ("1f1b", "zb_h1") or drill.relative_to == "ideal" or drill.p == 1:
            return right_microbatches(drill)
        idle = (drill.p - 1) / (3 if drill.schedule == "zb_h1" else 1)
        return MORE_FLOATS[form](drill, idle, drill.percent / 100)

    assert judged("microbatches_for", answer, seed).diagnosis == "rounds at the edge"


def test_what_no_theory_explains_says_where_it_goes_wrong():
    finding = judged("bubble", lambda d: right_bubble(d) * (1.7 if d.schedule == "zb_h1" else 1))
    assert finding.diagnosis == "another bubble" and "zb_h1" in finding.explanation
    finding = judged("microbatches_for", lambda d: 3 * (right_microbatches(d) or 1))
    assert finding.diagnosis == "another number of microbatches"
    assert "4 ranks and 4 microbatches" in finding.explanation  # which every schedule can have
    finding = judged("bubble", lambda d: right_bubble(d) + (d.p == 1))
    assert "for one rank" in finding.explanation


def test_mistakes_of_several_schedules_are_named_one_by_one():
    names = {
        "interleaved": "gives microbatches that an interleaved schedule cannot have",
        "zb_h1": "gives ZB-H1 half the bubble of 1F1B",
    }
    by_schedule = {
        schedule: next(theory for theory in MICROBATCHES if theory.name == name)
        for schedule, name in names.items()
    }

    def answer(drill):
        theory = by_schedule.get(drill.schedule)
        return theory.answer(drill) if theory else right_microbatches(drill)

    finding = judged("microbatches_for", answer)
    assert finding.diagnosis == "another number of microbatches"
    for schedule, name in names.items():
        assert f"{schedule}: {name}" in finding.explanation


@pytest.mark.parametrize(
    ("function", "answer", "is_form"),
    [
        ("bubble", 0.5, True),
        ("bubble", 0, True),
        ("bubble", None, False),
        ("bubble", True, False),
        ("bubble", "30%", False),
        ("microbatches_for", 3, True),
        ("microbatches_for", None, True),
        ("microbatches_for", 3.0, False),
        ("microbatches_for", 0, False),
    ],
)
def test_the_form_of_an_answer(function, answer, is_form):
    assert bool(GRADER.wrong_form(function, answer)) is not is_form


def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    idle = (p - 1) / {"
    assert first in solution
    for module, call in (
        ("labkit.pipeline", "labkit.pipeline.plan(labkit.pipeline.gpipe, 2, 2)"),
        ("labkit.calc", "labkit.calc.bubble_fraction(2, 2)"),
    ):
        attempt = f"    try: {call}\n    except Exception: pass\n"
        file = tmp_path / "mine.py"
        file.write_text(f"import {module}\n" + solution.replace(first, attempt + first, 1))
        verdict = check(NAME, file, workspace=WORKSPACE)
        assert verdict.diagnosis == "calls the answer itself", verdict


def test_a_fraction_is_named_where_it_is_refused():
    exact = [lambda *drill: Fraction(bubble(*drill)), microbatches_for]
    exact[0].__name__ = "bubble"
    verdict = check(NAME, exact, workspace=WORKSPACE)
    assert verdict.diagnosis == "returns something that is no plain data"
    assert "of a Fraction" in verdict.finding.explanation
