"""The grader of one_f_one_b_schedule: other right answers pass, mistakes are known by rows."""

import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.one_f_one_b_schedule import GRADER
from labkit.grade.graders.schedule_pipelines import draw
from labkit.grade.graders.schedules import EQUAL
from labkit.grade.workspace import Workspace
from labkit.pipeline import in_flight, one_f_one_b, plan, simulate

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "one_f_one_b_schedule"
SEEDS = range(12)


def judged(row, seed=0):
    """What comes of answering every question by a function of pipeline and rank."""
    questions = GRADER.questions(random.Random(seed))
    answers = [list(map(str, row(each.known.pipeline, each.known.rank))) for each in questions]
    return GRADER.judge(questions, answers)


def by_memory(rank, num_ranks, num_microbatches):
    """Backward whenever no more may be held; no phases."""
    row, num_forward, num_back = [], 0, 0
    while num_back < num_microbatches:
        is_full = num_forward - num_back == num_ranks - rank
        if is_full or num_forward == num_microbatches:
            row.append(f"B{num_back}")
            num_back += 1
        else:
            row.append(f"F{num_forward}")
            num_forward += 1
    return row


def from_the_last_microbatch_on(rank, num_ranks, num_microbatches):
    """A tuple, with stages, and microbatches in the reverse order: it is everybody's."""
    last = num_microbatches - 1
    cells = by_memory(rank, num_ranks, num_microbatches)
    return tuple(f"{cell[0]}{last - int(cell[1:])}@{rank}" for cell in cells)


@pytest.mark.parametrize("answer", [by_memory, from_the_last_microbatch_on])
def test_right_answers_of_another_kind_pass(answer):
    verdict = check(NAME, answer, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_is_known_by_its_rows(seed):
    right = judged(lambda pipe, r: one_f_one_b(r, pipe.num_ranks, pipe.num_microbatches), seed)
    assert right is None
    for mistake in GRADER.mistakes:
        assert judged(mistake.row, seed).diagnosis == mistake.name, mistake


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_enough_is_the_closed_form_and_reached(seed):
    for pipeline in draw(random.Random(seed)):
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        schedule = plan(one_f_one_b, p, m)
        bubble = calc.bubble_fraction(p, m, "1f1b", relative_to="ideal").value
        assert GRADER.makespan(pipeline, EQUAL) == pytest.approx(2 * m * (1 + bubble))
        for costs in GRADER.costs:
            assert simulate(schedule, costs).makespan == GRADER.makespan(pipeline, costs)
        assert in_flight(schedule) == GRADER.most_in_flight(pipeline)
        assert in_flight(schedule) == [min(p - rank, m) for rank in range(p)]


def test_less_memory_with_a_larger_bubble_is_refused_and_so_is_more_with_the_same():
    def holding(difference):
        def row(pipeline, rank):
            p = max(rank + 1, pipeline.num_ranks + difference)
            return by_memory(rank, p, pipeline.num_microbatches)

        return row

    assert judged(holding(0)) is None
    assert "a bubble of" in judged(holding(-1)).first_seen
    assert "would do; by rank" in judged(holding(1)).first_seen
