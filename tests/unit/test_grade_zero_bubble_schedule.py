"""The grader of zero_bubble_schedule: other right answers pass, mistakes are known by rows."""

import itertools
import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.schedule_answers import schedule_of
from labkit.grade.graders.schedule_pipelines import Pipeline, draw
from labkit.grade.graders.zero_bubble_mistakes import Idea
from labkit.grade.graders.zero_bubble_schedule import GRADER
from labkit.grade.workspace import Workspace
from labkit.pipeline import Costs, in_flight, plan, simulate, zero_bubble_h1

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "zero_bubble_schedule"
SEEDS = range(12)


def judged(row, seed=0):
    """What comes of answering every question by a function of pipeline and rank."""
    questions = GRADER.questions(random.Random(seed))
    answers = [list(map(str, row(each.known.pipeline, each.known.rank))) for each in questions]
    return GRADER.judge(questions, answers)


def by_memory(rank, num_ranks, num_microbatches):
    """1F1B's F and I; a W only where p microbatches are held, or no forward is left."""
    m, row = num_microbatches, []
    num = dict.fromkeys("FIW", 0)

    def do(kind):
        row.append(f"{kind}{num[kind]}")
        num[kind] += 1

    while num["I"] < m:
        if num["F"] == m or num["F"] - num["I"] == num_ranks - rank:
            do("I")
            if num["F"] == m and num["I"] > num["W"] and num["I"] < m:
                do("W")
        elif num["F"] - num["W"] == num_ranks:
            do("W")
        else:
            do("F")
    while num["W"] < m:
        do("W")
    return row


def latest_weights_first(rank, num_ranks, num_microbatches):
    """W of the latest I, not of the oldest; on rank 0, whose I nobody waits for, both in one."""
    put_off, row = [], []
    for cell in by_memory(rank, num_ranks, num_microbatches):
        if cell[0] == "I":
            put_off.append(cell[1:])
        row.append(f"W{put_off.pop()}" if cell[0] == "W" else cell)
        if rank == 0 and row[-1][0] == "W" and row[-2:-1] == [f"I{row[-1][1:]}"]:
            row[-2:] = [f"B{row[-1][1:]}"]
    return tuple(row)


@pytest.mark.parametrize("answer", [by_memory, latest_weights_first])
def test_right_answers_of_another_kind_pass(answer):
    verdict = check(NAME, answer, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_is_known_by_its_rows(seed):
    assert judged(Idea().row, seed) is None
    for mistake in GRADER.mistakes:
        assert judged(mistake.row, seed).diagnosis == mistake.name, mistake


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_enough_is_the_closed_form_and_reached(seed):
    for pipeline in draw(random.Random(seed)):
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        schedule = plan(zero_bubble_h1, p, m)
        if m >= p:
            bubble = calc.bubble_fraction(p, m, "zb_h1", relative_to="ideal").value
            assert GRADER.makespan(pipeline, GRADER.costs[0]) == pytest.approx(3 * m * (1 + bubble))
        for costs in GRADER.costs:
            assert simulate(schedule, costs).makespan == GRADER.makespan(pipeline, costs)
        assert max(in_flight(schedule)) == max(GRADER.most_in_flight(pipeline))


COSTS = [
    Costs(forward=f, input_gradient=i, weight_gradient=w)
    for f, i, w in itertools.product((1, 2, 4), repeat=3)
    if w <= min(f, i)
]


@pytest.mark.parametrize("answer", [zero_bubble_h1, by_memory])
def test_the_contract_holds_for_any_costs_with_a_w_as_short_as_f_and_i(answer):
    for p, m, costs in itertools.product((1, 2, 3, 5), (1, 2, 4, 7), COSTS):
        rows = [list(map(str, answer(rank, p, m))) for rank in range(p)]
        made = schedule_of(Pipeline(p, m), rows, NAME)
        assert simulate(made, costs).makespan == GRADER.makespan(Pipeline(p, m), costs), (p, m)
    short = Costs(forward=2, weight_gradient=2)  # an I shorter than W: more than the closed form
    assert simulate(plan(zero_bubble_h1, 2, 2), short).makespan > GRADER.makespan(
        Pipeline(2, 2), short
    )


def test_more_memory_and_a_smaller_bubble_are_refused_for_the_memory():
    more = Idea(lambda pipe, rank: 2 * (pipe.num_ranks - rank - 1), lambda pipe, rank: 2 * rank)
    assert "would do; by rank" in judged(more.row).first_seen
