"""Puzzles in a notebook and in a terminal."""

import sys

import pytest

from labkit import cli
from labkit.grade.puzzles import PUZZLES, standing
from labkit.notebook import schedule_puzzle
from labkit.notebook.schedule_svg import schedule_image, schedule_svg
from labkit.pipeline import gpipe, plan

GOOD = "F0 F1 B0 B1\nF0 B0 F1 B1\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.fixture
def labkit(monkeypatch, capsys):
    """Call `labkit ...`: (exit status, stdout, stderr)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return call


def html(shown) -> str:
    return shown._repr_mimebundle_()["text/html"]


def test_without_rows_the_puzzle_is_shown_and_not_what_it_teaches():
    shown = schedule_puzzle("two ranks")
    puzzle = PUZZLES["two ranks"]
    assert puzzle.story in repr(shown) and puzzle.story in html(shown)
    assert "time 9, and memory 2" in html(shown) and puzzle.teaches not in html(shown)


def test_without_a_name_all_are_listed():
    assert all(name in repr(schedule_puzzle()) for name in PUZZLES)


def test_a_pass_is_shown_with_its_picture_and_remembered():
    shown = schedule_puzzle("two ranks", GOOD)
    assert (
        shown and "two ranks: passed" in repr(shown) and PUZZLES["two ranks"].teaches in html(shown)
    )
    assert schedule_image(shown.ruling.timing) in html(shown)
    assert standing("two ranks") == "passed"


def test_what_is_over_budget_is_shown_with_picture_and_marked_cell():
    shown = schedule_puzzle("let go", plan(gpipe, 2, 4))
    assert (
        not shown and "[F2]" in html(shown) and schedule_image(shown.ruling.timing) in html(shown)
    )


def test_what_is_no_step_is_shown_with_the_marked_cell_alone():
    shown = schedule_puzzle("two ranks", "F0 F1 B0 B1\nF0 B0 F1 F1 B1")
    assert not shown and "[F1]" in html(shown) and "time " not in html(shown)


def test_rows_without_a_puzzle_are_refused_and_not_dropped():
    with pytest.raises(TypeError, match="puzzle"):
        schedule_puzzle(None, GOOD)
    with pytest.raises(TypeError, match="rows without a puzzle"):
        schedule_puzzle(rows=GOOD)


def test_what_was_written_is_shown_as_text_not_as_html():
    assert "<b>x" not in html(schedule_puzzle("two ranks", "<b>x</b>"))


def test_rows_in_the_field_are_judged_and_remembered():
    shown = schedule_puzzle("two ranks")
    before = html(shown)
    shown._rows.value = GOOD.replace("F1 B0", "B0 F1")
    assert not shown.check() and "takes too long" in shown._ruling.value
    shown._rows.value = GOOD
    ruling = shown.check()
    assert ruling and schedule_svg(ruling.timing) in shown._ruling.value
    assert standing("two ranks") == "passed" and html(shown) == before


def test_an_empty_field_gets_the_facts_and_is_no_answer():
    shown = schedule_puzzle("let go")
    shown.check()
    assert "no rows yet" in shown._ruling.value and standing("let go") == "not attempted"


# --- from a terminal ------------------------------------------------------------------------------


def test_a_file_with_rows_is_judged(labkit, tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text(GOOD)
    status, out, _ = labkit("puzzle", "two ranks", rows)
    assert status == 0 and "two ranks: passed" in out and "rank 1  .  F0 B0 B0 F1 B1 B1" in out
    assert "passed" in next(
        line for line in labkit("puzzle")[1].splitlines() if "two ranks" in line
    )
    rows.write_text("F0 F1\nF0 F1")
    status, out, _ = labkit("puzzle", "two-ranks", rows)
    assert status == 1 and "two ranks: wrong" in out


def test_a_puzzle_is_shown_and_all_are_listed(labkit):
    status, out, _ = labkit("puzzle", "folded")
    assert status == 0 and "0 and 3 on rank 0; 1 and 2 on rank 1" in out
    status, out, _ = labkit("puzzle")
    assert status == 0 and all(name in out for name in PUZZLES) and "not attempted" in out


def test_a_call_that_is_wrong_gets_an_error(labkit, tmp_path):
    status, _, err = labkit("puzzle", "two rings")
    assert status == 2 and "two ranks" in err and "Traceback" not in err
    status, _, err = labkit("puzzle", "two ranks", tmp_path / "none.txt")
    assert status == 2 and "Traceback" not in err


def test_a_file_that_is_no_text_is_wrong(labkit, tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_bytes(bytes(range(256)) * 1000)
    status, out, _ = labkit("puzzle", "two ranks", picture)
    assert status == 1 and "it cannot be read" in out
