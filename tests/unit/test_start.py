"""`labkit start` and `labkit update`: new pages come, and nothing of the learner's goes."""

import json

import pytest
from typer import BadParameter

from labkit.cli import start
from labkit.grade.workspace import COPY, Workspace, find_workspace

PAGES = ("read", "ran", "noted", "noted_of_old", "gone")


def page(*sources, outputs=()):
    cells = [{"cell_type": "code", "source": [text], "outputs": [*outputs]} for text in sources]
    return json.dumps({"cells": cells}).encode()


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of five pages and four exercises: change it, then update `copy`."""
    files = {f"exercises/{name}.py": b"stub" for name in ("open", "done", "done_of_old", "gone")}
    files["solutions/done.py"] = b"answer"
    files |= {f"notebooks/{name}.ipynb": page(name) for name in PAGES}
    monkeypatch.setattr(start, "_course", lambda source: iter(files.items()))
    start.start(tmp_path / COPY)
    return files


@pytest.fixture
def copy(course, tmp_path):
    return tmp_path / COPY


def test_an_update_renews_what_is_the_courses_and_keeps_what_is_the_learners(course, copy, capsys):
    exercises, notebooks = copy / "exercises", copy / "notebooks"
    (exercises / "done.py").write_text("mine")
    (exercises / "done_of_old.py").write_text("mine")
    ran = page("ran", outputs=[{"output_type": "stream"}])
    (notebooks / "ran.ipynb").write_bytes(ran)
    (notebooks / "noted.ipynb").write_bytes(page("noted", "my note"))
    (notebooks / "noted_of_old.ipynb").write_bytes(page("my note"))
    (notebooks / "my_own.ipynb").write_bytes(page("my own"))
    for name in ("read", "ran", "noted"):
        course[f"notebooks/{name}.ipynb"] = page(name, "new")
    for name in ("open", "done"):
        course[f"exercises/{name}.py"] = b"new stub"
    course["solutions/done.py"] = b"new answer"
    del course["notebooks/gone.ipynb"], course["exercises/gone.py"]
    start.update(copy)

    files = [path for path in copy.rglob("*.*") if path.is_file()]
    own = [path for path in files if not any(above.is_symlink() for above in path.parents)]
    texts = {str(path.relative_to(copy)): path.read_bytes() for path in own}
    assert texts.pop(".course.json")
    assert texts == {
        "exercises/open.py": b"new stub",
        "exercises/done.py": b"mine",
        "exercises/done_of_old.py": b"mine",
        "solutions/done.py": b"new answer",
        "notebooks/read.ipynb": page("read", "new"),
        "notebooks/ran.ipynb": page("ran", "new"),
        "notebooks/noted.ipynb": page("noted", "my note"),
        "notebooks/noted.new.ipynb": page("noted", "new"),
        "notebooks/noted_of_old.ipynb": page("my note"),
        "notebooks/my_own.ipynb": page("my own"),
        "earlier/notebooks/read.ipynb": page("read"),
        "earlier/notebooks/ran.ipynb": ran,
        "earlier/notebooks/gone.ipynb": page("gone"),
        "earlier/exercises/gone.py": b"stub",
    }
    assert "new: exercises/done.py, notebooks/noted.ipynb" in capsys.readouterr().out
    start.update(copy)
    assert "Nothing is new" in capsys.readouterr().out


def test_a_deleted_file_comes_back_and_a_page_that_was_run_stays_when_nothing_is_new(copy):
    ran = page("ran", outputs=[{"output_type": "stream"}])
    (copy / "notebooks" / "ran.ipynb").write_bytes(ran)
    (copy / "exercises" / "open.py").unlink()
    start.update(copy / "notebooks")  # it finds the copy above
    assert (copy / "notebooks" / "ran.ipynb").read_bytes() == ran
    assert (copy / "exercises" / "open.py").read_bytes() == b"stub"


def test_a_copy_is_not_written_over_another_folder(copy, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    for folder in (tmp_path / "mine", copy):
        with pytest.raises(BadParameter, match=folder.name):
            start.start(folder)
    with pytest.raises(BadParameter, match="mine"):
        start.update(tmp_path / "mine")


def test_the_copy_in_a_clone_is_the_workspace_of_the_clones_folder(tmp_path):
    start.start(tmp_path / COPY)
    assert find_workspace(tmp_path).root == tmp_path / COPY
    assert find_workspace(tmp_path / COPY / "notebooks").root == tmp_path / COPY
    assert Workspace(tmp_path / COPY).has_solutions
