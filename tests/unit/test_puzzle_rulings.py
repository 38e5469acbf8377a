"""How an answer to a puzzle is judged: only a whole step within both budgets passes."""

import random
import re

import pytest

from labkit import progress
from labkit.grade.outcome import Outcome
from labkit.grade.puzzles import PUZZLES, get_puzzle, has_passed, judge, solve, standing
from labkit.grade.puzzles.explain import memory_by_rank
from labkit.pipeline import (
    Kind,
    Op,
    gpipe,
    interleaved,
    least_makespan,
    one_f_one_b,
    parse,
    peak_memory,
    plan,
)

TWO, LET_GO, ZERO, VIRTUAL, FOLDED = (
    PUZZLES[name] for name in ("two ranks", "let go", "zero bubble", "virtual stages", "folded")
)
GOOD = "F0 F1 B0 B1\nF0 B0 F1 B1"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


# --- what passes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"\n   {GOOD}\n\n",
        GOOD.replace("\n", "\n      "),
        GOOD.splitlines(),
        tuple(GOOD.splitlines()),
        "F0@0 F1@0 B0@0 B1@0\nF0@1 B0@1 F1@1 B1@1",
        "F1 F0 B1 B0\nF1 B1 F0 B0",  # another numbering of microbatches
        [line.split() for line in GOOD.splitlines()],
        tuple(tuple(line.split()) for line in GOOD.splitlines()),
        parse(GOOD),
        plan(gpipe, 2, 2),
    ],
)
def test_a_right_answer_passes_in_every_form(answer):
    ruling = judge(TWO, answer)
    assert ruling and ruling.outcome is Outcome.PASSED and ruling.diagnosis == ""
    assert "Take along" in dict(ruling.paragraphs) and TWO.teaches in repr(ruling)


def test_whole_backwards_may_be_mixed_with_split_ones():
    puzzle = PUZZLES["backward in two"]
    assert judge(puzzle, "F0 F1 B0 F2 B1 B2\nF0 I0 F1 I1 W0 F2 I2 W1 W2")


def test_whole_backwards_gain_nothing_where_they_may_be_split():
    """So the search over I and W alone is exact for those who write B as well."""
    draw, num_mixed = random.Random(0), 0
    for puzzle in PUZZLES.values():
        if not puzzle.problem.is_split:
            continue
        schedule = least_makespan(puzzle.problem, puzzle.memory)
        for _ in range(20):
            mixed = [" ".join(row) for row in map(list, with_whole(schedule, draw))]
            ruling = judge(puzzle, mixed)
            if ruling.timing is not None:
                num_mixed += "B" in "".join(mixed)
                assert ruling.timing.makespan >= puzzle.makespan
    assert num_mixed > 20


def with_whole(schedule, draw):
    """Its rows with some of the Is moved back to their W, as one B, or the Ws forward."""
    for row in schedule.rows:
        cells = [f"{op}@{op.stage}" for op in row]
        for op in row:
            number = f"{op.microbatch}@{op.stage}"
            if op.kind is Kind.I and draw.random() < 0.4:
                keep, drop = draw.choice(["IW", "WI"])
                cells[cells.index(keep + number)] = f"B{number}"
                cells.remove(drop + number)
        yield cells


# --- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row", "diagnosis"),
    [
        ("let go", gpipe, "it holds too much"),
        ("zero bubble", one_f_one_b, "it takes too long"),
        ("zero bubble", gpipe, "it takes too long and holds too much"),
        ("two of three", one_f_one_b, "it holds too much"),
        ("virtual stages", interleaved, "it holds too much"),
    ],
)
def test_a_step_beyond_a_budget_is_told_which(name, row, diagnosis):
    puzzle = get_puzzle(name)
    problem = puzzle.problem
    ruling = judge(puzzle, plan(row, problem.num_ranks, problem.num_microbatches))
    assert ruling.outcome is Outcome.OVER_BUDGET and not ruling
    assert ruling.diagnosis == diagnosis
    assert ("Too much" in dict(ruling.paragraphs)) == ("much" in diagnosis)
    assert ("Waiting" in dict(ruling.paragraphs)) == ("long" in diagnosis)
    assert ruling.grid in repr(ruling) and puzzle.teaches not in repr(ruling)


@pytest.mark.parametrize("name", PUZZLES)
def test_one_unit_beyond_either_budget_does_not_pass(name):
    puzzle = PUZZLES[name]
    best = least_makespan(puzzle.problem, puzzle.memory)
    for field, diagnosis in (("makespan", "it takes too long"), ("memory", "it holds too much")):
        values = {each: getattr(puzzle, each) for each in puzzle.__dataclass_fields__}
        stricter = type(puzzle)(**{**values, field: values[field] - 1})
        ruling = judge(stricter, best)
        # Every rank may stay below the memory in one of several shortest orders.
        if field == "makespan" or max(memory_by_rank(best, puzzle)) == puzzle.memory:
            assert ruling.diagnosis == diagnosis


def test_memory_is_that_of_the_core():
    for puzzle in PUZZLES.values():
        problem = puzzle.problem
        best = least_makespan(problem)
        sizes = [float(size) for size in problem.held]
        expected = peak_memory(best, sizes, problem.kept_for_weights)
        assert memory_by_rank(best, puzzle) == expected


def test_the_cell_that_exceeds_the_memory_is_marked():
    told = dict(judge(LET_GO, plan(gpipe, 2, 4)).paragraphs)["Too much"]
    assert "rank 0 holds 3 with F2, operation 3 of its row" in told
    assert "rank 0  F0  F1 [F2] F3" in told


def test_where_a_rank_has_several_stages_each_operation_is_told_with_its_own():
    best = least_makespan(FOLDED.problem, FOLDED.memory)
    slow = [" ".join(f"{op}@{op.stage}" for op in row) for row in serial(FOLDED)]
    told = dict(judge(FOLDED, slow).paragraphs)
    assert "before F0@3, for F0 of stage 2 on rank 1" in told["Waiting"]
    assert told["Longest chain"].startswith("rank 0 F0@0, rank 1 F0@1 F0@2, rank 0 F0@3")
    values = {each: getattr(FOLDED, each) for each in FOLDED.__dataclass_fields__}
    told = dict(judge(type(FOLDED)(**{**values, "memory": 1}), best).paragraphs)["Too much"]
    assert re.match(r"rank 0 holds 2 with F\d@\d, operation 2", told)


def serial(puzzle):
    """One microbatch after another, with whole backwards where the puzzle has them."""
    problem = puzzle.problem
    rows = [[] for _ in range(problem.num_ranks)]
    for i in range(problem.num_microbatches):
        forward = [(Kind.F, stage) for stage in range(problem.num_stages)]
        for kind, stage in forward + [
            (kind, stage) for _, stage in reversed(forward) for kind in problem.kinds[1:]
        ]:
            rows[problem.placement[stage]].append(Op(kind, stage, i))
    return rows


@pytest.mark.parametrize("cell", ["X1", "F123456789012345"])
def test_a_cell_that_cannot_be_read_is_said_to_be_on_its_ranks_line(cell):
    for answer in (f"F0 F1 B0 B1\nF0 {cell} B0 B1", [["F0"], ["F0", cell]]):
        assert "on rank 1's line" in dict(judge(TWO, answer).paragraphs)["Why"]


@pytest.mark.parametrize("answer", [[["F0", 1], ["F0"]], [["F0"], None], [b"F0", b"F0"], [[[]]]])
def test_lists_of_something_else_are_no_answer(answer):
    why = dict(judge(TWO, answer).paragraphs)["Why"]
    assert "is no answer" in why and "of lists of cells" in why


# --- what is remembered ---------------------------------------------------------------------------


def test_how_an_answer_ended_is_remembered():
    assert standing("two ranks") == "not attempted" and not has_passed("two ranks")
    solve("two ranks", "")
    assert progress.events() == []
    solve("two ranks", "F0 B0 F1 B1\nF0 B0 F1 B1")
    assert standing("two ranks") == "over budget"
    assert solve("two-ranks", GOOD) and has_passed("two ranks")
    solve("two ranks", "hello")
    assert standing("two ranks") == "passed"
    event = progress.events("two ranks", "puzzle")[1]
    assert event.detail == {
        "outcome": "passed",
        "diagnosis": "",
        "makespan": 9.0,
        "memory": [2, 1],
    }
