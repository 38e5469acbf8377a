"""The grader of interleaved_schedule: other right answers pass, mistakes are known by rows."""

import itertools
import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.interleaved_mistakes import Idea
from labkit.grade.graders.interleaved_schedule import GRADER
from labkit.grade.graders.schedule_pipelines import Pipeline, draw_interleaved
from labkit.grade.graders.schedules import EQUAL
from labkit.grade.workspace import Workspace
from labkit.pipeline import Costs, Schedule, in_flight, interleaved, plan, simulate

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "interleaved_schedule"
SEEDS = range(12)


def judged(row, seed=0):
    """What comes of answering every question by a function of pipeline and rank."""
    questions = GRADER.questions(random.Random(seed))
    answers = [
        [f"{op}@{op.stage}" for op in row(each.known.pipeline, each.known.rank)]
        for each in questions
    ]
    return GRADER.judge(questions, answers)


def by_number(rank, num_ranks, num_microbatches, virtual):
    """The n-th forward and the n-th backward by arithmetic, as Megatron does it."""

    def nth(kind, n):
        rounds, rest = divmod(n, num_ranks * virtual)
        turn = rest // num_ranks
        turn = virtual - 1 - turn if kind == "B" else turn
        return f"{kind}{rounds * num_ranks + rest % num_ranks}@{turn * num_ranks + rank}"

    total, row = num_microbatches * virtual, []
    ahead = min(2 * (num_ranks - rank) + (virtual - 1) * num_ranks - 2, total)
    for n in range(total + ahead):
        row += [nth("F", n)] * (n < total) + [nth("B", n - ahead)] * (n >= ahead)
    return tuple(row)


def renamed(rank, num_ranks, num_microbatches, virtual):
    """Another order of microbatches, the same on all ranks."""
    last = num_microbatches - 1
    for cell in by_number(rank, num_ranks, num_microbatches, virtual):
        microbatch, _, stage = cell[1:].partition("@")
        yield f"{cell[0]}{last - int(microbatch)}@{stage}"


@pytest.mark.parametrize("answer", [by_number, renamed])
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
    for pipeline in draw_interleaved(random.Random(seed)):
        p, m, v = pipeline.num_ranks, pipeline.num_microbatches, pipeline.virtual
        schedule = plan(interleaved, p, m, virtual=v)
        bubble = calc.bubble_fraction(p, m, "interleaved", v, relative_to="ideal").value
        assert GRADER.makespan(pipeline, EQUAL) == pytest.approx(2 * v * m * (1 + bubble))
        for costs in GRADER.costs:
            assert simulate(schedule, costs).makespan == GRADER.makespan(pipeline, costs)
        assert in_flight(schedule) == GRADER.most_in_flight(pipeline)


def of(idea, pipeline):
    rows = tuple(tuple(idea.row(pipeline, rank)) for rank in range(pipeline.num_ranks))
    return Schedule("of an idea", rows, pipeline.num_stages, pipeline.num_microbatches)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("v", [2, 3])
def test_twice_the_distance_in_the_warmup_is_what_hides_messages(p, v):
    once = Idea(lambda pipe, rank: pipe.num_ranks - rank - 1 + (v - 1) * pipe.num_ranks)
    pipeline = Pipeline(p, 3 * p, v)
    short, long = of(once, pipeline), of(Idea(), pipeline)
    assert in_flight(short)[0] < in_flight(long)[0]
    assert simulate(short).makespan == simulate(long).makespan == 3 * (v * 3 * p + p - 1)
    costs = Costs(send=0.5)
    assert simulate(long, costs).makespan == simulate(long).makespan + (p * v - 1)
    assert simulate(short, costs).makespan > simulate(long, costs).makespan


def test_a_grid_says_what_a_message_costs_and_names_stages():
    once = Idea(lambda pipe, rank: pipe.num_ranks - rank - 1 + (pipe.virtual - 1) * pipe.num_ranks)
    finding = judged(once.row)
    assert "and 1 for a message: " in finding.first_seen and "F0@2" in finding.picture


def test_messages_are_hidden_where_they_are_as_short_as_forwards_and_backwards():
    for p, v, f, b, s in itertools.product((1, 2, 4), (2, 3), (1, 2), (1, 2, 4), (0.5, 1, 2)):
        if s > min(f, b):
            continue
        costs = Costs(forward=f, input_gradient=b / 2, weight_gradient=b / 2, send=s)
        pipeline = Pipeline(p, 2 * p, v)
        made = plan(interleaved, p, 2 * p, virtual=v)
        assert simulate(made, costs).makespan == GRADER.makespan(pipeline, costs), (p, v, costs)
    long = Costs(input_gradient=0.25, weight_gradient=0.25, send=1)  # longer than a backward
    made = plan(interleaved, 2, 4, virtual=2)
    assert simulate(made, long).makespan > GRADER.makespan(Pipeline(2, 4, 2), long)
