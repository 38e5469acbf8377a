"""hint, solution, reset: in steps, remembered, and nothing of the learner's lost."""

import shutil
from pathlib import Path

import pytest

from labkit import progress
from labkit.grade.catalog import get_exercise
from labkit.grade.hints import context, hint, reset, solution, standings
from labkit.grade.stubs import stub_of
from labkit.grade.workspace import Workspace

NAME = "ring_all_reduce"
REPOSITORY = Workspace(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.fixture
def workspace(tmp_path):
    """A clone in which a learner may write."""
    (tmp_path / "clone" / "exercises").mkdir(parents=True)
    clone = Workspace(tmp_path / "clone")
    shutil.copytree(REPOSITORY.root / "solutions", clone.root / "solutions")
    clone.exercise(NAME).write_text(stub_of(NAME, clone))
    return clone


def test_hints_come_one_by_one_and_the_last_stays(workspace):
    titles = [hint(NAME).title for _ in range(4)]
    assert [title.partition(": ")[0][-6:] for title in titles] == [
        "1 of 3",
        "2 of 3",
        "3 of 3",
        "3 of 3",
    ]


def test_a_hint_can_be_asked_for_by_number(workspace):
    text = get_exercise(NAME).hints[1]
    assert hint(NAME, 2).text == text
    with pytest.raises(ValueError, match="there are hints 1 to 3"):
        hint(NAME, 4)


def test_hints_restart_after_a_reset(workspace):
    hint(NAME, 3)
    reset(NAME, workspace=workspace)
    assert "hint 1 of 3" in hint(NAME).title


def test_a_tutor_gets_what_was_tried_and_neither_a_new_hint_nor_the_solution(workspace):
    exercise = get_exercise(NAME)
    before = context(NAME, workspace=workspace).text
    assert "Nothing was checked yet" in before and exercise.hints[0] not in before
    assert progress.events(NAME) == []
    hint(NAME)
    progress.record("check", NAME, outcome="wrong", diagnosis="sends the whole tensor")
    after = context(NAME, workspace=workspace).text
    assert exercise.hints[0] in after and exercise.hints[1] not in after
    assert "sends the whole tensor" in after and "hint 2 of 3" in after
    assert exercise.follow_ups[0] in after and "Budget, on n ranks" in after
    code = workspace.solution_text(NAME).partition("BEGIN SOLUTION")[2].splitlines()
    assert not [line for line in code if len(line.strip()) > 12 and line.strip() in after]


def test_the_solution_waits_for_a_pass(workspace):
    refused = solution(NAME, workspace=workspace)
    assert not refused.is_code and "confirm=True" in refused.text
    assert progress.events(NAME, "solution") == []
    progress.record("check", NAME, outcome="passed")
    assert "BEGIN SOLUTION" in solution(NAME, workspace=workspace).text


def test_a_solution_that_was_confirmed_is_remembered(workspace):
    assert solution(NAME, confirm=True, workspace=workspace).is_code
    assert [event.detail for event in progress.events(NAME, "solution")] == [
        {"after_a_pass": False}
    ]
    progress.record("check", NAME, outcome="passed")
    assert standings()[NAME] == "passed (after seeing the solution)"


def test_standing_is_the_last_outcome_until_a_pass(workspace):
    assert standings()[NAME] == "not attempted"
    progress.record("check", NAME, outcome="hung")
    assert standings()[NAME] == "hung"
    progress.record("check", NAME, outcome="passed")
    progress.record("check", NAME, outcome="wrong")
    solution(NAME, workspace=workspace)
    assert standings()[NAME] == "passed"


def test_reset_restores_the_stub_and_keeps_every_version(workspace):
    file = workspace.exercise(NAME)
    for text in ("first = 1\n", "second = 2\n"):
        file.write_text(text)
        note = reset(NAME, workspace=workspace)
        assert file.read_text() == stub_of(NAME, workspace)
    assert "exercises/backups/ring_all_reduce-2.py" in note.text
    kept = [path.read_text() for path in sorted(workspace.backups.iterdir())]
    assert kept == ["first = 1\n", "second = 2\n"]


def test_reset_of_a_stub_keeps_nothing(workspace):
    assert "already" in reset(NAME, workspace=workspace).text
    assert not workspace.backups.exists()


def test_reset_brings_a_missing_file_back(workspace):
    workspace.exercise(NAME).unlink()
    assert "is back" in reset(NAME, workspace=workspace).text
    assert workspace.exercise(NAME).read_text() == stub_of(NAME, workspace)
