"""The catalog of exercises, and where a learner's files are found."""

from pathlib import Path

import pytest

from labkit.grade import catalog
from labkit.grade.catalog import (
    CatalogError,
    UnknownExercise,
    get_exercise,
    load_catalog,
    load_subjects,
)
from labkit.grade.grader import load_graders
from labkit.grade.workspace import Workspace, WorkspaceNotFound, find_workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
SUBJECT = 'title = "Collectives"\norder = 1\nexercises = ["scan"]\ntopics = []\n'
ENTRY = """\
title = "Prefix sum"
notebook = "02_all_reduce"
difficulty = 2
hints = ["a", "b", "c"]
say = "log n steps"
follow_ups = ["when not?"]
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Make a folder of subjects the package's own: course(subject.toml, scan.toml)."""

    def made(subject=SUBJECT, entry=ENTRY):
        folder = tmp_path / "course" / "collectives"
        (folder / "exercises").mkdir(parents=True)
        (folder / "subject.toml").write_text(subject)
        if entry is not None:
            (folder / "exercises" / "scan.toml").write_text(entry)
        monkeypatch.setattr(catalog, "COURSE", folder.parent)

    return made


@pytest.mark.parametrize("name", load_catalog())
def test_every_exercise_is_complete(name):
    exercise = get_exercise(name)
    assert WORKSPACE.exercise(name).exists() and WORKSPACE.solution(name).exists()
    assert load_graders(name)
    assert 1 <= exercise.difficulty <= 5 and exercise.say and exercise.follow_ups
    assert len(set(exercise.hints)) == 3


def test_no_file_is_without_an_entry():
    files = {path.stem for path in (WORKSPACE.root / "solutions").glob("*.py")}
    assert files == set(load_catalog())
    for subject in load_subjects().values():
        for suffix in ("py", "toml"):
            files = {path.stem for path in (subject.folder / "exercises").glob(f"*.{suffix}")}
            assert files == set(subject.exercises)


def test_an_unknown_name_gets_the_closest_one_and_no_list():
    with pytest.raises(UnknownExercise, match=r"'find_the_deadlock'\?$"):
        get_exercise("find_the_deadlok")


def test_a_name_like_no_other_gets_no_guess_but_the_list():
    with pytest.raises(UnknownExercise, match="find_the_deadlock") as error:
        get_exercise("zzz")
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({"subject": "title =\n"}, r"collectives/subject\.toml"),
        ({"subject": SUBJECT.replace("order", "place")}, r"subject\.toml .*order"),
        ({"entry": "hints = [\n"}, r"exercises/scan\.toml is not"),
        ({"entry": ENTRY.replace("say", "tell")}, r"scan\.toml .*say"),
        ({"entry": None}, r"exercises/scan\.toml cannot be read"),
    ],
)
def test_a_file_that_is_wrong_says_where(course, texts, complaint):
    course(**texts)
    with pytest.raises(CatalogError, match=complaint):
        load_catalog()


def test_an_exercise_is_of_the_subject_in_whose_folder_it_lies(course):
    course()
    (exercise,) = load_catalog().values()
    assert (exercise.name, exercise.subject, exercise.hints) == (
        "scan",
        "collectives",
        ("a", "b", "c"),
    )


def test_the_workspace_is_found_from_a_folder_inside_it(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "scan.py").touch()  # another course's file
    assert find_workspace(tmp_path) == WORKSPACE
    (tmp_path / "solutions" / "zero1_step.py").touch()
    inside = tmp_path / "notebooks" / "deep"
    inside.mkdir(parents=True)
    assert find_workspace(inside) == Workspace(tmp_path)


def test_elsewhere_it_is_the_repository_of_the_package(tmp_path):
    assert find_workspace(tmp_path) == WORKSPACE


def test_exercises_are_in_the_order_of_the_notebooks():
    notebooks = [each.notebook for each in load_catalog().values()]
    assert notebooks == sorted(notebooks)


def test_without_either_the_error_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.grade.workspace.__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(WorkspaceNotFound, match="change into the folder"):
        find_workspace(tmp_path)
