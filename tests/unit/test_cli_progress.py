"""labkit progress, export and import in a terminal."""

import re
import sys
from datetime import datetime

import pytest

from labkit import cli
from labkit.grade.catalog import load_catalog
from labkit.interview.summary import subjects_by_group
from labkit.progress import clock, practice, record
from labkit.progress.practice import record_check

COLLECTIVES = str(len(subjects_by_group()["Collectives and networks"]))


@pytest.fixture
def labkit(tmp_path, monkeypatch, capsys):
    """Call `labkit ...` with a memory of its own: (exit status, stdout, stderr)."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


def row_of(out, name):
    (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
    return line.split()[1:]


def test_a_beginner_sees_what_there_is(labkit):
    status, out, err = labkit("progress")
    assert (status, err) == (0, "")
    assert "0 days in a row" in out
    assert row_of(out, "Collectives")[-4:] == ["0", "of", COLLECTIVES, "0"]
    assert f"Exercises not started: {len(load_catalog())};" in out


def test_what_was_done_shows(labkit, monkeypatch):
    noon_s = datetime(2026, 5, 10, 12).timestamp()
    monkeypatch.setattr(clock, "now_s", lambda: noon_s)
    yesterday_s = noon_s - 86_400 - 60
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now_s", lambda: yesterday_s)
        record("hint", "ring_all_reduce", number=1)
        record_check("ring_all_reduce", attempted=True, passed=False, outcome="wrong")
        practice.answer("card/co-8", "again")
    record_check("tree_broadcast", attempted=True, passed=True, outcome="passed")
    record("mock", "senior", minutes=45, score=0.5)
    status, out, err = labkit("progress")
    assert (status, err) == (0, "")
    assert "2 days in a row" in out and "Due now: 1 card, 1 exercise" in out
    # A card and two exercises; the card and the one that failed are due.
    assert row_of(out, "Collectives")[-4:] == ["3", "of", COLLECTIVES, "2"]
    (shown,) = [word for word in row_of(out, "Collectives") if word.endswith("%")]
    assert shown != "0%"
    assert row_of(out, "ring_all_reduce") == ["1", "1"]
    assert row_of(out, "tree_broadcast")[:2] == ["1", "0"]
    assert row_of(out, "tree_broadcast")[-1] == "2026-05-10"
    assert f"Exercises not started: {len(load_catalog()) - 2};" in out
    assert "2026-05-10: 50%" in out
    assert "notebooks/02_all_reduce_inside_out.ipynb" in out, "where the next topic is taught"


def test_without_fsrs_the_rest_shows(labkit, monkeypatch):
    practice.answer("card/co-8", "again")
    monkeypatch.setitem(sys.modules, "fsrs", None)
    status, out, _ = labkit("progress")
    assert status == 0 and "pip install fsrs" in out and "Exercises not started" in out


def test_an_export_can_be_imported_elsewhere(labkit, tmp_path, monkeypatch):
    practice.answer("card/co-8", "good")
    assert labkit("export", "--json", tmp_path / "all.json")[1].startswith("2 events")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "other"))
    for added, known in ((2, 0), (0, 2)):
        out = labkit("import", tmp_path / "all.json")[1]
        assert re.findall(r"\d+", out) == [str(added), str(known)]
    assert practice.state("card/co-8").num_answers == 1


def test_errors_are_one_clear_line(labkit, tmp_path):
    assert labkit("export")[0] == 2
    (tmp_path / "bad.json").write_text("{}")
    status, out, err = labkit("import", tmp_path / "bad.json")
    assert (status, out) == (2, "") and "bad.json" in err and "Traceback" not in err
