"""Graders of schedules: form, validity, time and memory, and the grid with the cell."""

import random
from pathlib import Path

import pytest

from labkit.grade import check
from labkit.grade.graders.gpipe_schedule import GRADER
from labkit.grade.graders.schedule_answers import schedule_of, wrong_form
from labkit.grade.graders.schedule_budget import holds_more, takes_longer
from labkit.grade.graders.schedule_pipelines import Pipeline, Row, draw, draw_interleaved
from labkit.grade.graders.schedule_validity import invalid
from labkit.grade.graders.schedules import EQUAL
from labkit.grade.workspace import Workspace
from labkit.pipeline import Kind

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "gpipe_schedule"
F, B = Kind.F, Kind.B


def schedule(written, num_microbatches, virtual=1):
    rows = [row.split() for row in written.split("\n")]
    pipeline = Pipeline(len(rows), num_microbatches, virtual)
    return pipeline, schedule_of(pipeline, rows, "mine")


# What is wrong, of how many microbatches and stages per rank, its name, and the marked cell.
INVALID = {
    "F0 F1 B0 B1\nF0 B0 B1": (2, 1, "a backward before its forward", "[B1]"),
    "F0 F1 B0 B1\nF0 F1 B0": (2, 1, "leaves an operation out", "[...]"),
    "F0 B0 F0\nF0 B0": (1, 1, "an operation twice", "[F0]"),
    "F0 I0 B0\nF0 B0": (1, 1, "an operation twice", "[B0]"),
    "F0 B0 W0\nF0 B0": (1, 1, "an operation twice", "[W0]"),
    "F0 I0 W0\nF0 W0 I0": (1, 1, "a W before its I", "[W0]"),
    "F1 B1\nF1 B1": (1, 1, "a microbatch that there is not", "[F1]"),
    "F0 B0\nF0@2 B0@2": (1, 1, "a stage that there is not", "[F0@2]"),
    "F0 B0\nF0@0 B0@0": (1, 1, "a stage of another rank", "[F0@0]"),
    "F0@0 F0@1 B0@1 B0@0\nF0@2 F0@3 B0@3 B0@2": (1, 2, "a stage of another rank", "[F0@1]"),
    "F0 F1 B0 B1\nF1 B1 F0 B0": (2, 1, None, ""),
    "F0 B0 F1 B1\nF1 B1 F0 B0": (2, 1, "an order in which ranks wait for ever", "[B0]"),
    "F0@1 F0@0 B0@1 B0@0": (1, 2, "an order in which ranks wait for ever", "[F0@1]"),
}


@pytest.mark.parametrize("written", INVALID)
def test_what_is_no_step_is_named_and_its_cell_is_marked(written):
    num_microbatches, virtual, name, mark = INVALID[written]
    finding = invalid(*schedule(written, num_microbatches, virtual))
    assert (finding and finding.diagnosis) == name
    if finding:
        assert finding.picture.count("[") == 1 and mark in finding.picture
        assert finding.first_seen.startswith(str(schedule(written, num_microbatches, virtual)[0]))


def test_a_wait_is_told_in_the_letters_of_the_schedule():
    whole = invalid(*schedule("F0 B0 F1 B1\nF1 B1 F0 B0", 2))
    assert "waits at B0 for B0 of rank 1" in whole.first_seen and "I0" not in whole.first_seen
    split = invalid(*schedule("F0 I0 W0 F1 I1 W1\nF1 I1 W1 F0 I0 W0", 2))
    assert "waits at I0 for B0 or I0 of rank 1" in split.first_seen


def test_a_microbatch_below_0_says_that_there_may_be_fewer_than_ranks():
    cells = ["F0", "B-3"]
    few, many = (
        wrong_form(Row(Pipeline(5, m), 0), cells, "f()", (F, B), False).explanation for m in (1, 5)
    )
    assert "fewer microbatches than ranks" in few and "fewer" not in many


def test_what_is_long_is_shown_as_cut_off():
    row = Row(Pipeline(2, 1), 0)
    assert "9..." in wrong_form(row, ["F" + "9" * 99], "f()", (F, B), False).explanation


def test_the_numbers_of_a_bubble_and_the_grid_in_time_are_shown():
    pipeline, given = schedule("F0 B0 F1 B1\nF0 B0 F1 B1", 2)
    finding = takes_longer(pipeline, given, EQUAL, 6, (F, B))
    assert finding.picture.splitlines()[0] == "rank 0  F0 .  .  B0 F1 .  .  B1"
    assert "F = 1 and B = 1: 8 units of time where 6 would do" in finding.first_seen
    assert "a bubble of 100.0% of the ideal time, and not of 50.0%" in finding.first_seen
    assert takes_longer(pipeline, given, EQUAL, 8, (F, B)) is None


def test_the_numbers_of_memory_are_shown_by_rank_and_the_cell_is_marked():
    pipeline, given = schedule("F0 F1 B0 F2 B1 B2\nF0 F1 B0 B1 F2 B2", 3)
    finding = holds_more(pipeline, given, [2, 1])
    assert "rank 1 holds 2 where 1 would do; by rank 2 and 2, and at most 2 and 1" in (
        finding.first_seen
    )
    assert "rank 1  F0 [F1] B0" in finding.picture
    assert holds_more(pipeline, given, [2, 2]) is None


def test_an_i_leaves_a_microbatch_in_flight_until_its_w():
    pipeline, given = schedule("F0 I0 F1 I1 W0 W1", 2)
    assert "[F1]" in holds_more(pipeline, given, [1]).picture


# The body of a function, and the diagnosis.
FORMS = {
    "return None": "returns something else",
    "return 'F0 B0'": "returns something else",
    "return {'F0': 0}": "returns something else",
    "return [('F', 0)]": "returns something else",
    "return ['f0', 'b0']": "returns something else",
    "return ['F0', 'B']": "returns something else",
    "return ['F-1']": "a microbatch before the first",
    "return ['F' + '9' * 5000]": "returns something else",
    "return ['F٣']": "returns something else",
    "return [['F0', 'B0']]": "returns something else",
    "return [('F0', 'B0')] * num_ranks": "returns the rows of all ranks",
    "return {'F0', 'B0'}": "returns something that is no plain data",
    "return ['F0', object()]": "returns something that is no plain data",
    "return ['F0', 'I0', 'W0']": "an operation of another kind",
    "return ['F0', None, 'B0']": "writes down when it waits",
    "return ['F0', ' ', 'B0']": "writes down when it waits",
    "return [F for F in []]": "leaves an operation out",
    "while True: yield 'F0'": "an operation twice",
    "yield 1 / 0": "raises ZeroDivisionError",
    "return ['F999999']": "a microbatch that there is not",
    "return [f'F{i}@9' for i in range(3)]": "a stage that there is not",
    "return range(rank, 9)": "returns something else",
}


@pytest.mark.parametrize("body", FORMS)
def test_whatever_comes_back_is_named(body, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"def {NAME}(rank, num_ranks, num_microbatches):\n    {body}\n")
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == FORMS[body], verdict


def test_a_grid_keeps_its_columns_in_a_notebook(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"def {NAME}(rank, p, m):\n    return [f'F{{i}}' for i in range(m)][1:]\n")
    verdict = check(NAME, file, workspace=WORKSPACE)
    grid = verdict.finding.picture
    assert "<pre" in verdict._repr_html_() and grid in verdict._repr_html_()
    assert "  Picture:\n    rank 0" in repr(verdict)


@pytest.mark.parametrize("seed", range(30))
def test_pipelines_have_all_edges_and_begin_with_a_plain_one(seed):
    pipelines = draw(random.Random(seed))
    assert len(pipelines) == 12
    first = pipelines[0]
    assert 2 < first.num_ranks < first.num_microbatches
    sizes = [(each.num_ranks, each.num_microbatches) for each in pipelines]
    assert any(p == 1 < m for p, m in sizes) and any(m == 1 < p for p, m in sizes)
    assert any(1 < m < p for p, m in sizes) and any(m == p > 1 for p, m in sizes)
    assert (1, 1) in sizes and all(p <= 8 and m <= 16 for p, m in sizes)
    several = draw_interleaved(random.Random(seed))
    assert len(several) == 10 and all(each.virtual > 1 for each in several)
    assert all(each.num_microbatches % each.num_ranks == 0 for each in several)
    assert any(each.num_microbatches == each.num_ranks > 1 for each in several)
    assert any(each.num_microbatches > each.num_ranks > 2 for each in several)


def test_what_was_tried_is_counted_and_rows_are_asked_for_one_by_one():
    questions = GRADER.questions(random.Random(0))
    assert GRADER.tried(questions) == "12 pipelines"
    assert questions[0].arguments[0] == 0 and questions[1].arguments[0] == 1
    assert questions[0].label.startswith("the row of rank 0 of ")
