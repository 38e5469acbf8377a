"""A solved exercise in a mock interview: code from before the question is no answer to it."""

import shutil

import pytest

from labkit import progress
from labkit.cli import mock as cli_mock
from labkit.grade import engine
from labkit.grade.hints import reset
from labkit.grade.verdict import Outcome
from labkit.grade.workspace import find_workspace
from labkit.interview.mock import Item
from labkit.interview.mock.interview import GivenExercise
from labkit.notebook.mock_items import ExerciseItem

NAME = "ring_all_reduce"
ITEM = Item("exercise", NAME, "Collectives and networks")


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """A copy, whose exercise is a stub."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    for folder in ("exercises", "solutions"):
        shutil.copytree(find_workspace().root / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    found = find_workspace()
    reset(NAME)
    return found


def solve(workspace, more=""):
    text = workspace.solution(NAME).read_text() + more
    workspace.exercise(NAME).write_text(text)


class Passed:
    """A verdict, without the ranks."""

    outcome = Outcome.PASSED

    def __init__(self, name):
        pass

    def __str__(self):
        return "it is passed"

    _repr_html_ = __str__


def test_a_stub_needs_no_word_and_what_is_written_into_it_is_new(workspace):
    given = GivenExercise(NAME)
    assert given.notice == ""
    solve(workspace)
    assert given.is_new()


def test_code_from_before_is_named_and_is_not_new(workspace):
    solve(workspace)
    given = GivenExercise(NAME)
    assert f"`labkit reset {NAME}`" in given.notice
    solve(workspace, "\n# a comment is no code\n")
    assert not given.is_new()
    solve(workspace, "\nmore = 1\n")
    assert given.is_new()


def test_what_was_passed_is_said_to_be_solved(workspace):
    solve(workspace)
    progress.record("check", NAME, outcome="passed")
    assert "solved" in GivenExercise(NAME).notice
    reset(NAME)
    assert GivenExercise(NAME).notice == "", "a stub again"


def test_after_a_reset_the_same_code_is_new(workspace):
    solve(workspace)
    given = GivenExercise(NAME)
    reset(NAME)
    solve(workspace)
    assert given.is_new()


@pytest.mark.parametrize("text", ["def ring_all_reduce(:", None])
def test_a_file_that_is_broken_or_missing_stops_nobody(workspace, text):
    path = workspace.exercise(NAME)
    path.unlink() if text is None else path.write_text(text)
    given = GivenExercise(NAME)
    assert bool(given.notice) == (text is not None)
    solve(workspace)
    assert given.is_new()


def test_the_page_says_so_first_and_takes_no_old_pass(workspace, monkeypatch):
    solve(workspace)
    monkeypatch.setattr(engine, "check", Passed)
    done = []
    view = ExerciseItem(ITEM, done.append)
    assert f"<code>labkit reset {NAME}</code>" in view.widget.children[0].value
    view.check()
    assert not done and "this does not count" in view._verdict.value
    reset(NAME)
    solve(workspace)
    view.check()
    assert done == [(1.0, [])]


def test_the_terminal_says_so_first_and_takes_no_old_pass(workspace, monkeypatch, capsys):
    solve(workspace)
    monkeypatch.setattr("labkit.grade.engine.check", Passed)
    typed = iter(["", "s"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    score, _ = cli_mock._exercise(ITEM, 1)
    out = " ".join(capsys.readouterr().out.split())
    assert score == 0 and f"`labkit reset {NAME}`" in out and "not count" in out
