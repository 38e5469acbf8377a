"""How an answer to a puzzle is judged: only a whole step within both budgets passes."""

import random
import re

import pytest

from labkit import progress
from labkit.grade.puzzles import PUZZLES, get_puzzle, judge, solve, standing
from labkit.grade.puzzles.ruling import longest_chain, longest_wait, memory_by_rank
from labkit.grade.verdict import Outcome
from labkit.pipeline import (
    Costs,
    Kind,
    Op,
    Schedule,
    gpipe,
    interleaved,
    one_f_one_b,
    parse,
    peak_memory,
    plan,
    simulate,
    text,
)
from tests.least_makespan import least_makespan

TWO, LET_GO, ZERO, VIRTUAL, FOLDED = (
    PUZZLES[name] for name in ("two ranks", "let go", "zero bubble", "virtual stages", "folded")
)
GOOD = "F0 F1 B0 B1\nF0 B0 F1 B1"


def best_text(puzzle) -> str:
    return text(least_makespan(puzzle.problem, puzzle.memory))


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


# --- what skips work, does other work or is no answer --------------------------------------------

WRONG = {
    "a forward is missing": (TWO, "F0 B0 B1\nF0 B0 F1 B1", "B1 before F1"),
    "a microbatch is missing on one rank": (TWO, "F0 F1 B0 B1\nF0 B0", "F1 of stage 1 is missing"),
    "a backward is missing": (TWO, "F0 F1 B0\nF0 B0 F1 B1", "B1 of stage 0 is missing"),
    "all backwards are missing": (TWO, "F0 F1\nF0 F1", "is missing"),
    "fewer microbatches": (TWO, "F0 B0\nF0 B0", "F1 of stage 0 is missing"),
    "more microbatches": (TWO, "F0 F1 F2 B0 B1 B2\nF0 B0 F1 B1 F2 B2", "F2 is of microbatch 2"),
    "done twice": (TWO, "F0 F1 F1 B0 B1\nF0 B0 F1 B1", "F1 of stage 0 is there twice"),
    "half a backward": (TWO, "F0 F1 I0 I1\nF0 I0 F1 I1", "I0 is half a backward; here it is whole"),
    "backward split": (TWO, "F0 F1 B0 I1 W1\nF0 B0 F1 B1", "I1 is half a backward"),
    "weights are missing": (
        ZERO,
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3\n" + "\n".join(best_text(ZERO).splitlines()[1:]),
        "W3 of stage 0 is missing",
    ),
    "weights twice": (
        ZERO,
        best_text(ZERO).replace("W3", "W3 W3", 1),
        "W3 of stage 0 is there twice",
    ),
    "all on one rank": (TWO, "F0@0 F0@1 B0@1 B0@0 F1@0 F1@1 B1@1 B1@0\n", "1 row for 2 ranks"),
    "stages swapped": (TWO, "F0@1 B0@1 F1@1 B1@1\nF0@0 F1@0 B0@0 B1@0", "here rank 1 holds it"),
    "another placement": (VIRTUAL, best_text(FOLDED), "here rank 1 holds it"),
    "one stage fewer": (VIRTUAL, text(plan(one_f_one_b, 2, 4)), "of stage 2 is missing"),
    "a stage too many": (TWO, "F0 F1 B0 B1\nF0 B0 F1 B1 F0@2 B0@2", "F0 is of stage 2"),
    "a rank too many": (TWO, f"{GOOD}\nF0 B0 F1 B1", "3 rows for 2 ranks"),
    "a rank too few": (TWO, "F0 F1 B0 B1", "1 row for 2 ranks"),
    "a deadlock": (TWO, "F0 B0 F1 B1\nF1 B1 F0 B0", "a deadlock"),
    "backward before forward": (TWO, "B0 F0 F1 B1\nF0 B0 F1 B1", "B0 before F0"),
    "a Schedule of fewer microbatches": (LET_GO, plan(one_f_one_b, 2, 2), "F2 of stage 0"),
    "a Schedule of more microbatches": (TWO, plan(one_f_one_b, 2, 4), "microbatch 2"),
    "a Schedule of more ranks": (TWO, plan(one_f_one_b, 3, 2), "3 rows for 2 ranks"),
    "an empty Schedule": (TWO, Schedule("none", ((), ()), 0, 0), "is missing"),
    "rows of text": (
        TWO,
        Schedule("text", ("F0 B0", "F0 B0"), 2, 1),
        "rows[0]='F0 B0': give a tuple",
    ),
    "no tuple of rows": (TWO, Schedule("none", None, 2, 2), "schedule.rows=None: give a tuple"),
    "no rows at all": (TWO, Schedule("none", (), 0, 0), "0 rows for 2 ranks"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_the_puzzles_step_is_wrong(case):
    puzzle, answer, reason = WRONG[case]
    ruling = judge(puzzle, answer)
    assert ruling.outcome is Outcome.WRONG and not ruling
    assert reason in dict(ruling.paragraphs)["Why"]
    assert ruling.timing is None and ruling.grid == ""


@pytest.mark.parametrize("name", PUZZLES)
def test_a_best_answer_without_any_one_of_its_operations_is_wrong(name):
    puzzle = PUZZLES[name]
    rows = [line.split() for line in best_text(puzzle).splitlines()]
    for rank, row in enumerate(rows):
        for index in range(len(row)):
            shorter = [*rows[:rank], row[:index] + row[index + 1 :], *rows[rank + 1 :]]
            ruling = judge(puzzle, "\n".join(map(" ".join, shorter)))
            assert ruling.outcome is Outcome.WRONG, (rank, row[index])


def test_the_wrong_cell_is_marked():
    why = dict(judge(TWO, "F0 F1 B0 B1\nF0 B0 F1 F1 B1").paragraphs)["Why"]
    assert "rank 1  F0  B0  F1 [F1] B1" in why


@pytest.mark.parametrize(
    "answer",
    ["hello", "X0 X1\nX0 X1", "F-1 B0\nF0 B0", f"F{'9' * 5000}\nF0", 9, [1, 2], [], one_f_one_b],
)
def test_an_answer_that_is_no_list_of_operations_shows_how_to_write_one(answer):
    ruling = judge(TWO, answer)
    assert ruling.outcome is Outcome.WRONG and len(repr(ruling)) < 2_000
    assert "F0 F1 ... B1" in dict(ruling.paragraphs)["Write"]


@pytest.mark.parametrize("answer", [None, "", " \n\t "])
def test_nothing_written_is_not_attempted(answer):
    ruling = judge(TWO, answer)
    assert ruling.outcome is Outcome.NOT_ATTEMPTED and not ruling
    assert "time 9" in repr(ruling) and "memory 2" in repr(ruling)


# --- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row", "diagnosis"),
    [
        ("let go", gpipe, ["much"]),
        ("zero bubble", one_f_one_b, ["long"]),
        ("zero bubble", gpipe, ["long", "much"]),
        ("two of three", one_f_one_b, ["much"]),
        ("virtual stages", interleaved, ["much"]),
    ],
)
def test_a_step_beyond_a_budget_names_the_budget(name, row, diagnosis):
    puzzle = get_puzzle(name)
    problem = puzzle.problem
    ruling = judge(puzzle, plan(row, problem.num_ranks, problem.num_microbatches))
    assert ruling.outcome is Outcome.OVER_BUDGET and not ruling
    assert re.findall("long|much", ruling.diagnosis) == diagnosis
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
    reported = dict(judge(LET_GO, plan(gpipe, 2, 4)).paragraphs)["Too much"]
    assert "rank 0 holds 3 with F2, operation 3" in reported
    assert "rank 0  F0  F1 [F2] F3" in reported


def test_where_a_rank_has_several_stages_each_operation_is_reported_with_its_own():
    best = least_makespan(FOLDED.problem, FOLDED.memory)
    slow = [" ".join(f"{op}@{op.stage}" for op in row) for row in serial(FOLDED)]
    reported = dict(judge(FOLDED, slow).paragraphs)
    assert "before F0@3, for F0 of stage 2 on rank 1" in reported["Waiting"]
    assert reported["Longest chain"].startswith("rank 0 F0@0, rank 1 F0@1 F0@2, rank 0 F0@3")
    values = {each: getattr(FOLDED, each) for each in FOLDED.__dataclass_fields__}
    reported = dict(judge(type(FOLDED)(**{**values, "memory": 1}), best).paragraphs)["Too much"]
    assert re.match(r"rank 0 holds 2 with F\d@\d, operation 2", reported)


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


# --- what is said of waits and chains ---


def test_who_waits_longest_and_for_what_is_reported():
    timing = simulate(parse("F0 B0 F1 B1\nF0 B0 F1 B1"))
    for said in ("rank 0", "6 of 12", "from 1 to 4", "before B0", "B0 of stage 1 on rank 1"):
        assert said in longest_wait(timing)
    timing = simulate(parse("F0 B0\nF0 B0"), Costs(forward=[1, 9]))
    assert "rank 0" in longest_wait(timing) and "1 to 12" in longest_wait(timing)
    timing = simulate(parse("F0 B0\nF0 B0"), Costs(input_gradient=[9, 1]))
    assert "from 4 to 14" in longest_wait(timing)


def test_the_longest_chain_is_unbroken_from_0_to_the_end():
    timing = simulate(parse(GOOD))
    assert longest_chain(timing) == "rank 0 F0, rank 1 F0 B0 F1 B1, rank 0 B1"
    slow = simulate(plan(one_f_one_b, 2, 4), Costs(send=2))
    assert (
        longest_chain(slow)
        == "rank 0 F0, rank 1 F0 B0, rank 0 B0 F2, rank 1 F2 B2 F3 B3, rank 0 B3"
    )
    long = simulate(parse("\n".join(["F0 B0 F1 B1 F2 B2"] * 3)))
    assert "12 times" in longest_chain(long)


# --- what is remembered ---------------------------------------------------------------------------


def test_how_an_answer_ended_is_remembered():
    assert standing("two ranks") == "not attempted"
    solve("two ranks", "")
    assert progress.events() == []
    solve("two ranks", "F0 B0 F1 B1\nF0 B0 F1 B1")
    assert standing("two ranks") == "over budget"
    assert solve("two-ranks", GOOD) and standing("two ranks") == "passed"
    solve("two ranks", "hello")
    assert standing("two ranks") == "passed"
    event = progress.events("two ranks", "puzzle")[1]
    assert event.detail == {
        "outcome": "passed",
        "diagnosis": "",
        "makespan": 9.0,
        "memory": [2, 1],
    }
