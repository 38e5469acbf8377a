"""Progress: kept where it can be, and never in the way of grading."""

import os
import resource
import shutil
import sqlite3
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import pytest

from labkit.progress import ProgressWarning, events, home, practice, record, store
from tests.progress_stores import all_at_once, as_nobody, finished, forked


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def path_of(folder):
    return folder / "progress.sqlite3"


def warnings_of(work):
    """What a piece of work returns, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return work(), [str(w.message) for w in caught if w.category is ProgressWarning]


def test_events_come_back_in_order_and_by_kind():
    record("check", "scan", outcome="wrong")
    record("hint", "scan", number=1)
    record("check", "ring", outcome="passed")
    assert [(e.kind, e.subject) for e in events()] == [
        ("check", "scan"),
        ("hint", "scan"),
        ("check", "ring"),
    ]
    assert [event.detail for event in events("scan", "hint")] == [{"number": 1}]
    assert len({event.uid for event in events()}) == 3


def test_home_is_what_the_variable_says(own_home):
    assert home() == own_home


def test_home_is_this_systems_place_without_the_variable(monkeypatch):
    import platformdirs

    monkeypatch.delenv("LABKIT_HOME")
    assert str(home()) == platformdirs.user_data_dir("labkit", appauthor=False)


def test_home_needs_no_package_at_all(monkeypatch):
    monkeypatch.delenv("LABKIT_HOME")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert home().name == ".labkit"


def test_an_error_within_a_transaction_undoes_all_of_it():
    def half(opened):
        practice.insert(opened, practice.Event(1.0, "check", "scan", {}))
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        store.writing(half)
    assert events() == []


def write_many(number):
    for _ in range(25):
        record("check", f"writer-{number}")


def test_four_processes_write_at_once():
    all_at_once(write_many, 4)
    assert [len(events(f"writer-{number}")) for number in range(4)] == [25] * 4


def test_a_damaged_store_is_kept_aside_and_a_new_one_begins(own_home):
    own_home.mkdir()
    path_of(own_home).write_bytes(b"not a database at all, of any kind" * 100)
    with pytest.warns(ProgressWarning, match="kept as progress.corrupt-1.sqlite3"):
        record("check", "scan")
    assert [event.subject for event in events()] == ["scan"]
    assert (own_home / "progress.corrupt-1.sqlite3").read_bytes().startswith(b"not a database")


def test_a_second_damaged_store_does_not_overwrite_the_first(own_home):
    own_home.mkdir()
    for content in (b"first " * 200, b"second " * 200):
        path_of(own_home).write_bytes(content)
        with pytest.warns(ProgressWarning):
            assert events() == []
    assert (own_home / "progress.corrupt-1.sqlite3").read_bytes() == b"first " * 200
    assert (own_home / "progress.corrupt-2.sqlite3").read_bytes() == b"second " * 200


def test_a_page_that_was_overwritten_is_damage(own_home):
    store.writing(
        lambda opened: [
            practice.insert(opened, practice.Event(1.0, "check", "scan", {"text": "x" * 100}))
            for _ in range(300)
        ]
    )
    content = path_of(own_home).read_bytes()
    path_of(own_home).write_bytes(content[:8192] + b"\xff" * 40_000 + content[48_192:])
    with pytest.warns(ProgressWarning, match="kept as progress.corrupt-1.sqlite3"):
        assert events() == []


@pytest.mark.parametrize("detail", ["[1]", "null", "3", "{"])
def test_a_detail_that_is_no_json_object_is_damage(own_home, detail):
    record("check", "scan")
    change = "UPDATE events SET detail = ?"
    store.writing(lambda opened: opened.execute(change, (detail,)))
    with pytest.warns(ProgressWarning, match="which is no JSON.*kept as progress.corrupt-1"):
        assert events() == []


def test_what_labkit_did_not_write_is_no_reason_to_throw_the_store_away(own_home):
    record("check", "scan")
    with pytest.raises(sqlite3.IntegrityError):
        store.writing(lambda opened: opened.execute("INSERT INTO events (at_s) VALUES (NULL)"))
    record("check", "half a character \ud800")
    assert [event.subject for event in events()] == ["scan", "half a character ?"]
    assert [event.kind for event in events("half a character \ud800")] == ["check"]


def test_a_home_that_cannot_be_made_is_a_warning(own_home):
    own_home.write_text("a file where a folder should be")
    with pytest.warns(ProgressWarning, match="not remembered"):
        record("check", "scan")
    with pytest.warns(ProgressWarning, match="does not show"):
        assert events() == []


@pytest.fixture
def reachable_home(monkeypatch):
    """A home that another user may enter; pytest's own folders are closed to them."""
    folder = Path(tempfile.mkdtemp())
    monkeypatch.setenv("LABKIT_HOME", str(folder))
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def write_and_read():
    _, written = warnings_of(lambda: record("check", "ring"))
    found, read = warnings_of(events)
    return [event.subject for event in found], written, read


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_read_only_store_can_still_be_read(reachable_home, folder_mode):
    record("check", "scan")
    path_of(reachable_home).chmod(0o444)
    reachable_home.chmod(folder_mode)
    before = path_of(reachable_home).read_bytes()
    subjects, written, read = as_nobody(write_and_read)
    assert (subjects, read) == (["scan"], [])
    assert len(written) == 1 and "not remembered" in written[0]
    assert path_of(reachable_home).read_bytes() == before


def test_a_folder_that_is_read_only_and_empty_is_a_warning(reachable_home):
    reachable_home.chmod(0o555)
    subjects, written, read = as_nobody(write_and_read)
    assert subjects == [] and "not remembered" in written[0] and "does not show" in read[0]


def fill_the_disk(limit_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    for number in range(300):
        _, written = warnings_of(partial(record, "check", "scan", text="x" * 5000, number=number))
        if written:
            return number, written
    raise AssertionError("the disk was never full")


def test_a_full_disk_loses_nothing_that_was_there(own_home):
    record("check", "ring")
    num_written, written = finished(forked(fill_the_disk, 100_000))
    assert num_written > 10 and "not remembered" in written[0]
    assert [event.detail["number"] for event in events("scan")] == list(range(num_written))
    assert [event.kind for event in events("ring")] == ["check"]
    assert not list(own_home.glob("*corrupt*"))


def test_the_home_of_nobody_is_a_warning(monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", "~nobody-of-this-name/x")
    for call in (lambda: record("check", "scan"), events):
        with pytest.warns(ProgressWarning, match="LABKIT_HOME=~nobody-of-this-name/x: .*a folder"):
            call()


def test_a_store_that_somebody_else_holds_is_waited_for_and_then_a_warning(own_home, monkeypatch):
    record("check", "scan")
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    other = sqlite3.connect(path_of(own_home))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.warns(ProgressWarning, match="locked"):
        record("check", "ring")
    other.close()
    assert [event.subject for event in events()] == ["scan"]
    assert not list(own_home.glob("*corrupt*"))


def test_a_store_of_a_newer_labkit_is_refused_and_left_alone(own_home):
    record("check", "scan")
    newer = sqlite3.connect(path_of(own_home))
    newer.execute(f"PRAGMA user_version = {store.VERSION + 1}")
    newer.close()
    before = path_of(own_home).read_bytes()
    reason = f"version {store.VERSION + 1}, written by a newer labkit.*Update labkit"
    with pytest.warns(ProgressWarning, match=reason):
        record("check", "ring")
    with pytest.warns(ProgressWarning, match=reason):
        assert events() == []
    assert path_of(own_home).read_bytes() == before
    assert os.listdir(own_home) == ["progress.sqlite3"]
