"""The grader of gpipe_schedule: other right answers pass, and mistakes are known by their rows."""

import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.gpipe_schedule import GRADER
from labkit.grade.graders.schedule_pipelines import draw
from labkit.grade.graders.schedules import EQUAL
from labkit.grade.workspace import Workspace
from labkit.pipeline import gpipe, plan, simulate

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "gpipe_schedule"
SEEDS = range(12)


def judged(row, seed=0):
    """What comes of answering every question by a function of pipeline and rank."""
    questions = GRADER.questions(random.Random(seed))
    answers = [list(map(str, row(each.known.pipeline, each.known.rank))) for each in questions]
    return GRADER.judge(questions, answers)


def last_in_first_out(rank, num_ranks, num_microbatches):
    """Backward in the reverse order."""
    for microbatch in range(num_microbatches):
        yield f"F{microbatch}"
    for microbatch in reversed(range(num_microbatches)):
        yield f"B{microbatch}"


def any_order_that_is_everybodys(rank, num_ranks, num_microbatches):
    order = sorted(range(num_microbatches), key=lambda i: (i % 2, -i))
    return tuple(f"F{i}@{rank}" for i in order) + tuple(f"B{i}" for i in order[::-1])


@pytest.mark.parametrize("answer", [last_in_first_out, any_order_that_is_everybodys])
def test_right_answers_in_another_order_pass(answer):
    verdict = check(NAME, answer, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_is_known_by_its_rows(seed):
    assert judged(lambda pipe, r: gpipe(r, pipe.num_ranks, pipe.num_microbatches), seed) is None
    for mistake in GRADER.mistakes:
        assert judged(mistake.row, seed).diagnosis == mistake.name, mistake


@pytest.mark.parametrize("seed", SEEDS)
def test_the_time_that_is_enough_is_the_closed_form_and_reached(seed):
    for pipeline in draw(random.Random(seed)):
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        bubble = calc.bubble_fraction(p, m, "gpipe", relative_to="ideal").value
        assert GRADER.makespan(pipeline, EQUAL) == pytest.approx(2 * m * (1 + bubble))
        for costs in GRADER.costs:
            assert simulate(plan(gpipe, p, m), costs).makespan == GRADER.makespan(pipeline, costs)


def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    forwards = "
    assert solution.count(first) == 1
    for call in ("gpipe(0, 1, 1).__next__()", "parse('F0 B0')", "Costs().of_sends(1)"):
        attempt = f"    try: {call}\n    except BaseException: pass\n"
        file = tmp_path / "mine.py"
        file.write_text(
            "from labkit.pipeline import *\n" + solution.replace(first, attempt + first)
        )
        verdict = check(NAME, file, workspace=WORKSPACE)
        assert verdict.diagnosis == "calls the answer itself", verdict
