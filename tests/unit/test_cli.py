"""labkit in a terminal: the same engine, in commands."""

import shutil
import sys
from pathlib import Path

import pytest

from labkit import cli, progress
from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import Workspace

REPOSITORY = Workspace(Path(__file__).parents[2])
NAME = "ring_all_reduce"
LIBRARY = REPOSITORY.root / "tests" / "mutants" / NAME / "library_all_reduce.py"


@pytest.fixture
def labkit(tmp_path, monkeypatch, capsys):
    """Call `labkit ...` in a clone of its own: (exit status, stdout, stderr), one line each."""
    for folder in ("exercises", "solutions"):
        shutil.copytree(REPOSITORY.root / folder, tmp_path / folder)
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
    assert f"labkit hint {NAME}" in out and 'hint("' not in out


def test_the_solution_in_the_learners_file_passes_and_counts(labkit):
    shutil.copy(f"solutions/{NAME}.py", f"exercises/{NAME}.py")
    status, out, err = labkit("check", NAME)
    assert (status, err) == (0, "") and f"{NAME}: passed" in out and "They may ask next" in out
    assert "passed" in labkit("list")[1]
    assert "BEGIN SOLUTION" in labkit("solution", NAME)[1]


def test_without_a_name_all_are_checked_and_counted(labkit):
    shutil.copy(f"solutions/{NAME}.py", f"exercises/{NAME}.py")
    status, out, _ = labkit("check")
    names = list(load_catalog(REPOSITORY))
    assert status == 1 and f"1 of {len(names)} passed" in out
    assert all(f"{name}: " in out for name in names)


def test_another_file_is_graded_and_the_command_that_repeats_it_is_shown(labkit):
    status, out, _ = labkit("check", NAME, "--file", LIBRARY, "--seed", 7)
    assert status == 1 and "calls a library collective" in out
    assert f'labkit check {NAME} --file "{LIBRARY}" --seed 7' in out
    assert progress.events() == [] or progress.events()[-1].kind == "reset"


def test_hints_come_one_by_one(labkit):
    assert "hint 1 of 3: the concept" in labkit("hint", NAME)[1]
    assert "hint 2 of 3: the invariant" in labkit("hint", NAME)[1]
    assert "hint 1 of 3: the concept" in labkit("hint", NAME, 1)[1]
    assert labkit("hint", NAME, 4)[0] == 2


def test_the_solution_is_shown_on_confirmation_only(labkit):
    status, out, _ = labkit("solution", NAME)
    assert status == 1 and "BEGIN SOLUTION" not in out and f"labkit solution {NAME} --yes" in out
    status, out, _ = labkit("solution", NAME, "--yes")
    assert status == 0 and "BEGIN SOLUTION" in out


def test_reset_says_where_the_old_file_is(labkit):
    Path("exercises", f"{NAME}.py").write_text("mine = True\n")
    assert f"exercises/backups/{NAME}-1.py" in labkit("reset", NAME)[1]
    assert Path("exercises", "backups", f"{NAME}-1.py").read_text() == "mine = True\n"


@pytest.mark.parametrize("command", ["check", "hint", "solution", "reset", "watch"])
def test_an_unknown_name_is_an_error_with_a_suggestion_and_no_traceback(labkit, command):
    status, out, err = labkit(command, "ring_allreduce")
    assert (status, out) == (2, "") and "Did you mean 'ring_all_reduce'?" in err
    assert "Traceback" not in err


def test_a_missing_file_says_which_command_restores_it(labkit):
    Path("exercises", f"{NAME}.py").unlink()
    status, _, err = labkit("check", NAME)
    assert status == 2 and f"labkit reset {NAME}" in err
    assert "is back" in labkit("reset", NAME)[1]


def test_watching_takes_a_terminal_and_says_what_does_not(labkit):
    status, out, err = labkit("watch", NAME)
    assert (status, out) == (2, "") and "Traceback" not in err
    assert "standard input is no terminal" in err and f"labkit check {NAME}" in err


def test_damaged_progress_is_one_clear_line_and_the_command_works(labkit, tmp_path):
    (tmp_path / "home" / "progress.sqlite3").write_bytes(b"rubbish " * 200)
    status, out, err = labkit("list")
    assert status == 0 and NAME in out
    assert "progress.corrupt-1.sqlite3" in err and ".py" not in err
