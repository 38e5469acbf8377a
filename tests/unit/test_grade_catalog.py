"""The catalog of exercises, and where it is found."""

from pathlib import Path

import pytest

from labkit.grade.graders import load_graders
from labkit.grade.workspace import (
    CatalogError,
    UnknownExercise,
    Workspace,
    WorkspaceNotFound,
    find_workspace,
    get_exercise,
    load_catalog,
)

WORKSPACE = Workspace(Path(__file__).parents[2])
ENTRY = """\
[scan]
title = "Prefix sum"
topic = "collectives"
notebook = "02_all_reduce"
difficulty = 2
hints = ["a", "b", "c"]
say = "log n steps"
follow_ups = ["when not?"]
"""


def workspace_with(tmp_path, text):
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "catalog.toml").write_text(text)
    return Workspace(tmp_path)


@pytest.mark.parametrize("name", load_catalog(WORKSPACE))
def test_every_exercise_is_complete(name):
    exercise = get_exercise(name, WORKSPACE)
    assert WORKSPACE.exercise(name).exists() and WORKSPACE.solution(name).exists()
    assert load_graders(name)
    assert 1 <= exercise.difficulty <= 5 and exercise.say and exercise.follow_ups
    assert len(set(exercise.hints)) == 3


def test_no_file_is_without_an_entry():
    files = {path.stem for path in (WORKSPACE.root / "solutions").glob("*.py")}
    assert files == set(load_catalog(WORKSPACE))


def test_an_unknown_name_gets_the_closest_one_and_no_list():
    with pytest.raises(UnknownExercise, match=r"Did you mean 'find_the_deadlock'\?$"):
        get_exercise("find_the_deadlok", WORKSPACE)


def test_a_name_like_no_other_gets_no_guess_but_the_list():
    with pytest.raises(UnknownExercise, match="The exercises are: .*find_the_deadlock") as error:
        get_exercise("zzz", WORKSPACE)
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[scan\n", "not valid TOML"),
        (ENTRY.replace("say", "tell"), r"\[scan\] needs exactly .*say"),
        ("scan = 3\n", r"\[scan\] needs exactly"),
    ],
)
def test_a_catalog_that_is_wrong_says_where(tmp_path, text, complaint):
    with pytest.raises(CatalogError, match=complaint):
        load_catalog(workspace_with(tmp_path, text))


def test_the_workspace_is_found_from_a_folder_inside_it(tmp_path):
    workspace = workspace_with(tmp_path, ENTRY)
    inside = tmp_path / "notebooks" / "deep"
    inside.mkdir(parents=True)
    assert find_workspace(inside) == workspace


def test_elsewhere_it_is_the_repository_of_the_package(tmp_path):
    assert find_workspace(tmp_path) == WORKSPACE


def test_exercises_are_in_the_order_of_the_notebooks():
    notebooks = [each.notebook for each in load_catalog(WORKSPACE).values()]
    assert notebooks == sorted(notebooks)


def test_without_either_the_error_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.grade.workspace.__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(WorkspaceNotFound, match="change into the folder"):
        find_workspace(tmp_path)
