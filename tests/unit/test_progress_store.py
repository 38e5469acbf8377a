"""Progress: kept where it can be, and never in the way of grading."""

import multiprocessing
import sqlite3
import sys
import warnings

import pytest

from labkit.progress import ProgressWarning, events, home, record, store


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


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


def write_many(number):
    for _ in range(25):
        record("check", f"writer-{number}")


def test_two_processes_write_at_once():
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert [len(events(f"writer-{number}")) for number in range(2)] == [25, 25]


def test_a_damaged_store_is_kept_aside_and_a_new_one_begins(own_home):
    own_home.mkdir()
    (own_home / "progress.sqlite3").write_bytes(b"not a database at all, of any kind" * 100)
    with pytest.warns(ProgressWarning, match="kept as progress.corrupt-1.sqlite3"):
        record("check", "scan")
    assert [event.subject for event in events()] == ["scan"]
    assert (own_home / "progress.corrupt-1.sqlite3").read_bytes().startswith(b"not a database")


def test_a_second_damaged_store_does_not_overwrite_the_first(own_home):
    own_home.mkdir()
    for content in (b"first " * 200, b"second " * 200):
        (own_home / "progress.sqlite3").write_bytes(content)
        with pytest.warns(ProgressWarning):
            assert events() == []
    assert (own_home / "progress.corrupt-1.sqlite3").read_bytes() == b"first " * 200
    assert (own_home / "progress.corrupt-2.sqlite3").read_bytes() == b"second " * 200


def test_a_home_that_cannot_be_made_is_a_warning(own_home):
    own_home.write_text("a file where a folder should be")
    with pytest.warns(ProgressWarning, match="not remembered"):
        record("check", "scan")
    with pytest.warns(ProgressWarning, match="does not show"):
        assert events() == []


def test_a_read_only_store_can_still_be_read(own_home, monkeypatch):
    record("check", "scan")
    connect = sqlite3.connect

    def read_only(path, **options):
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.warns(ProgressWarning, match="not remembered.*readonly"):
        record("check", "ring")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [event.subject for event in events()] == ["scan"]


def test_a_store_that_somebody_else_holds_is_waited_for_and_then_a_warning(own_home, monkeypatch):
    record("check", "scan")
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    other = sqlite3.connect(own_home / "progress.sqlite3")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.warns(ProgressWarning, match="locked"):
        record("check", "ring")
    other.close()
    assert [event.subject for event in events()] == ["scan"]
    assert not list(own_home.glob("*corrupt*"))
