"""What skips work, does other work, is no answer or lies cannot pass a puzzle."""

import math

import pytest

from labkit.grade.outcome import Outcome
from labkit.grade.puzzles import PUZZLES, has_passed, judge, solve, standing
from labkit.pipeline import (
    Kind,
    Op,
    Schedule,
    gpipe,
    least_makespan,
    one_f_one_b,
    plan,
    simulate,
    text,
)

TWO, LET_GO, ZERO, VIRTUAL, FOLDED = (
    PUZZLES[name] for name in ("two ranks", "let go", "zero bubble", "virtual stages", "folded")
)
GOOD = "F0 F1 B0 B1\nF0 B0 F1 B1"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def best_text(puzzle) -> str:
    return text(least_makespan(puzzle.problem, puzzle.memory))


# --- what skips work, or does other work ----------------------------------------------------------

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
    "stages swapped": (TWO, "F0@1 B0@1 F1@1 B1@1\nF0@0 F1@0 B0@0 B1@0", "here rank 1 holds"),
    "another placement": (VIRTUAL, best_text(FOLDED), "here rank 1 holds that stage"),
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


# --- what is no answer, or lies -------------------------------------------------------------------


class Liar(Schedule):
    """Claims to be short, whatever its rows are."""

    num_ranks = 2
    rank_of = {0: 0, 1: 1}

    def __eq__(self, other):
        return True


class LyingText(str):
    def splitlines(self, *_):
        return GOOD.splitlines()

    strip = __str__ = lambda self, *_: GOOD


class LyingOp(Op):
    product = (Kind.F, 0, 0)


class LyingList(list):
    def __iter__(self):
        return iter(GOOD.splitlines())


class LyingNumber(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def with_op(op) -> Schedule:
    rows = plan(gpipe, 2, 2).rows
    return Schedule("gpipe", ((op, *rows[0][1:]), rows[1]), 2, 2)


def with_lying_facts() -> Schedule:
    schedule = plan(one_f_one_b, 2, 2)
    object.__setattr__(schedule, "num_microbatches", 1)
    object.__setattr__(schedule, "rows", (schedule.rows[0][:2], schedule.rows[1][:2]))
    schedule.__dict__["rank_of"] = {0: 0, 1: 1}
    return schedule


NONSENSE = {
    "words": "hello",
    "other letters": "X0 X1\nX0 X1",
    "inf": "Finf B0\nF0 B0",
    "nan": "Fnan B0\nF0 B0",
    "a negative number": "F-1 B0\nF0 B0",
    "a fraction": "F0.5 B0\nF0 B0",
    "a huge number": f"F{'9' * 5000} B0\nF0 B0",
    "a number of many digits": f"F{'9' * 4000} B0\nF0 B0",
    "a large stage": "F0@99999999 B0\nF0 B0",
    "a huge text": "F0 " * 1_000_000,
    "a long text": f"{GOOD} F0" + " F0 B0" * 1000,
    "many lines": "F0\n" * 30_000,
    "many lines in a list": ["F0"] * 1_000_000,
    "a number": 9,
    "nan itself": math.nan,
    "inf itself": math.inf,
    "True": True,
    "bytes": GOOD.encode(),
    "a dict": {0: "F0", 1: "F0"},
    "a generator": (line for line in GOOD.splitlines()),
    "a list of numbers": [1, 2],
    "a list of lists": [["F0"], ["F0"]],
    "an empty list": [],
    "Ops": [Op(Kind.F, 0, 0)],
    "a function": one_f_one_b,
    "the timing": simulate(plan(gpipe, 2, 2)),
    "a subclass of Schedule": Liar("best", ((), ()), 2, 2),
    "a subclass of Schedule with right rows": Liar("best", plan(gpipe, 2, 2).rows, 2, 2),
    "a subclass of str": LyingText("F0"),
    "a subclass of list": LyingList(["F0"]),
    "a Schedule of text": Schedule("text", tuple(GOOD.splitlines()), 2, 2),
    "a Schedule without rows": Schedule("none", None, 2, 2),
    "a Schedule of nothing": Schedule("none", (None, None), 2, 2),
    "a Schedule of inf": with_op((Kind.F, 0, math.inf)),
    "a Schedule of nan": with_op((Kind.F, math.nan, 0)),
    "a Schedule of True": with_op((Kind.F, False, 0)),
    "a Schedule of letters": with_op(("F", 0, 0)),
    "a Schedule of 0.0": with_op((Kind.F, 0, 0.0)),
    "a Schedule of pairs": with_op((Kind.F, 0)),
    "a Schedule of other Ops": with_op(LyingOp(Kind.F, 0, 0)),
    "a Schedule of other numbers": with_op((Kind.F, 0, LyingNumber(0))),
    "a Schedule that was tampered with": with_lying_facts(),
    "a huge Schedule": Schedule("huge", (((Kind.F, 0, 0),) * 1_000_000, ()), 2, 2),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_what_is_no_answer_does_not_pass(case):
    ruling = judge(TWO, NONSENSE[case])
    assert ruling.outcome is Outcome.WRONG and not ruling
    assert len(repr(ruling)) < 2_000 and "Traceback" not in repr(ruling)


@pytest.mark.parametrize(
    "case", ["a huge text", "many lines", "many lines in a list", "a huge Schedule"]
)
def test_what_is_huge_is_refused_before_it_is_read(case):
    why = dict(judge(TWO, NONSENSE[case]).paragraphs)["Why"]
    assert "no order of this puzzle" in why


@pytest.mark.parametrize("answer", [None, "", " \n\t "])
def test_nothing_written_is_not_attempted(answer):
    ruling = judge(TWO, answer)
    assert ruling.outcome is Outcome.NOT_ATTEMPTED and not ruling
    assert "time 9, and memory 2" in repr(ruling)


def test_what_did_not_pass_is_not_remembered_as_a_pass():
    for case in NONSENSE:
        solve("two ranks", NONSENSE[case])
    assert not has_passed("two ranks") and standing("two ranks") == "wrong"
