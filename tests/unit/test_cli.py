"""labkit in a terminal: the same engine, in commands."""

import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from labkit import cli, progress
from labkit.grade import catalog
from labkit.grade.catalog import get_exercise, load_catalog, load_subjects
from labkit.interview.cards import read_bank
from labkit.interview.drills import DRILLS, Outcome, judge

ROOT = Path(__file__).parents[2]
NAME, OTHER = "model_state_bytes", "tree_broadcast"


@pytest.fixture
def labkit(tmp_path, monkeypatch, capsys):
    """Call `labkit ...` in a clone with two exercises: (status, stdout, stderr), one line each."""
    for folder in ("exercises", "solutions"):
        (tmp_path / folder).mkdir()
        for name in (NAME, OTHER):
            shutil.copy(ROOT / folder / f"{name}.py", tmp_path / folder)
    for name in (NAME, OTHER):
        folder = load_subjects()[get_exercise(name).subject].folder
        own = tmp_path / "labkit" / "course" / folder.name
        (own / "exercises").mkdir(parents=True)
        shutil.copy(folder / "exercises" / f"{name}.toml", own / "exercises")
        text = (folder / "subject.toml").read_text()
        text = re.sub(
            r"^exercises = \[.*?\]", f'exercises = [\\n  "{name}",\\n]', text, flags=re.M | re.S
        )
        (own / "subject.toml").write_text(text)
    monkeypatch.setattr(catalog, "COURSE", tmp_path / "labkit" / "course")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, " ".join(out.split()), " ".join(err.split())

    call("reset", NAME)
    return call


def test_a_stub_is_not_attempted(labkit):
    status, out, _ = labkit("check", NAME)
    assert status == 1 and f"{NAME}: not attempted" in out
    assert f"labkit hint {NAME}" in out and 'hint("' not in out  # commands, and no calls


def test_the_solution_in_the_learners_file_passes_and_counts(labkit):
    shutil.copy(f"solutions/{NAME}.py", f"exercises/{NAME}.py")
    status, out, err = labkit("check", NAME)
    assert (status, err) == (0, "") and f"{NAME}: passed" in out
    assert "passed" in labkit("list")[1]
    assert "BEGIN SOLUTION" in labkit("solution", NAME)[1]


def test_without_a_name_all_are_checked_and_counted(labkit):
    shutil.copy(f"solutions/{NAME}.py", f"exercises/{NAME}.py")
    status, out, _ = labkit("check")
    assert status == 1 and "1 of 2 passed" in out
    assert f"{NAME}: passed" in out and f"{OTHER}: not attempted" in out


def test_a_check_of_all_goes_on_after_a_file_that_cannot_be_read(labkit):
    shutil.copy(f"solutions/{NAME}.py", f"exercises/{NAME}.py")
    for content in (None, b"\xff\xfe"):
        Path("exercises", f"{OTHER}.py").unlink(missing_ok=True)
        if content is not None:
            Path("exercises", f"{OTHER}.py").write_bytes(content)
        status, out, err = labkit("check")
        assert (status, err) == (1, "") and f"{NAME}: passed" in out
        assert "1 of 2 passed" in out and f"Not checked: {OTHER}" in out


def test_a_solution_that_is_gone_is_one_line(labkit):
    Path("solutions", f"{NAME}.py").unlink()
    for words in (["solution", NAME, "--yes"], ["reset", NAME]):
        status, _, err = labkit(*words)
        assert status == 2 and f"solutions/{NAME}.py" in err and "Traceback" not in err


def test_the_list_has_difficulties_and_a_count(labkit):
    out = labkit("list")[1]
    assert "difficulty" in out and "0 of 2 passed" in out


def test_another_file_is_graded_and_the_command_that_repeats_it_is_shown(labkit):
    Path("another.py").write_text(f"def {NAME}(*arguments):\n    return 1 / 0\n")
    status, out, _ = labkit("check", NAME, "--file", "another.py", "--seed", 7)
    assert status == 1 and "ZeroDivisionError" in out and "another.py, line 2" in out
    assert f'labkit check {NAME} --file "another.py" --seed 7' in out
    assert [each.kind for each in progress.events()] == ["reset"]


def test_hints_come_one_by_one(labkit):
    assert "hint 1 of 3" in labkit("hint", NAME)[1]
    assert "hint 2 of 3" in labkit("hint", NAME)[1]
    assert "hint 1 of 3" in labkit("hint", NAME, 1)[1]
    assert labkit("hint", NAME, 4)[0] == 2


def test_the_solution_is_shown_on_confirmation_only(labkit):
    status, out, err = labkit("solution", NAME)
    assert (status, out) == (1, "") and f"labkit solution {NAME} --yes" in err
    status, out, _ = labkit("solution", NAME, "--yes")
    assert status == 0 and "BEGIN SOLUTION" in out


def test_reset_says_where_the_old_file_is(labkit):
    Path("exercises", f"{NAME}.py").write_text("mine = True\n")
    assert f"exercises/backups/{NAME}-1.py" in labkit("reset", NAME)[1]
    assert Path("exercises", "backups", f"{NAME}-1.py").read_text() == "mine = True\n"


@pytest.mark.parametrize("command", ["check", "hint", "solution", "reset", "watch"])
def test_an_unknown_name_is_an_error_with_a_suggestion_and_no_traceback(labkit, command):
    status, out, err = labkit(command, "modelstate_bytes")
    assert (status, out) == (2, "") and NAME in err
    assert "Traceback" not in err


def test_a_missing_file_says_which_command_restores_it(labkit):
    Path("exercises", f"{NAME}.py").unlink()
    status, _, err = labkit("check", NAME)
    assert status == 2 and f"labkit reset {NAME}" in err
    assert labkit("reset", NAME)[0] == 0 and Path("exercises", f"{NAME}.py").exists()


def test_watching_takes_a_terminal_and_says_what_does_not(labkit):
    status, out, err = labkit("watch", NAME)
    assert (status, out) == (2, "") and "Traceback" not in err
    assert f"labkit check {NAME}" in err


def test_damaged_progress_is_one_clear_line_and_the_command_works(labkit, tmp_path):
    (tmp_path / "home" / "progress.sqlite3").write_bytes(b"rubbish " * 200)
    status, out, err = labkit("list")
    assert status == 0 and NAME in out
    assert "progress.corrupt-1.sqlite3" in err and ".py" not in err


def test_a_new_exercise_has_all_its_files(labkit, tmp_path):
    words = ("new", "exercise", "my_sum", "--subject", "collectives")
    status, out, _ = labkit(*words)
    assert status == 0 and "pytest tests/grade -k my_sum" in out
    assert "def my_sum" in (tmp_path / "exercises" / "my_sum.py").read_text()
    graders = catalog.COURSE / "collectives" / "exercises"
    assert '"""Grade my_sum' in (graders / "my_sum.py").read_text()
    catalog._subjects.cache_clear()
    catalog._exercises.cache_clear()
    assert list(load_catalog()) == [OTHER, "my_sum", NAME]
    assert get_exercise("my_sum").subject == "collectives"
    for wrong in (words, (*words[:2], "no name", *words[3:]), (*words[:4], "colectives")):
        assert labkit(*wrong)[0] == 2


def test_a_new_card_can_be_read(labkit):
    assert labkit("new", "card", "co-1b")[0] == 0
    found, problems = read_bank()
    assert [(card.id, card.file) for card in found] == [("co-1b", "collectives/cards.md")]
    assert problems == []
    assert labkit("new", "card", "co-1b")[0] == 2
    assert labkit("new", "card", "co-99")[0] == 2


def test_a_new_drill_can_be_asked(labkit):
    assert labkit("new", "drill", "my_drill", "--topic", "co-2")[0] == 0
    made = runpy.run_path(str(catalog.COURSE / "collectives" / "drills.py"))["my_drill"]
    question = made.question(seed=1)
    assert judge(question, question.answer_text).outcome is Outcome.RIGHT
    assert labkit("new", "drill", next(iter(DRILLS)), "--topic", "co-2")[0] == 2
    assert labkit("new", "drill", "my_drill", "--topic", "co-99")[0] == 2
