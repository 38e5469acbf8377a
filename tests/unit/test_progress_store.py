"""Progress: nothing is lost, damage is set aside, and no trouble of the store stops anything."""

import multiprocessing
import os
import sqlite3
import sys

import pytest

from labkit.progress import ProgressWarning, events, home, practice, record, store


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def path_of(folder):
    return folder / "progress.sqlite3"


def test_events_come_back_in_order_and_by_kind():
    record("check", "scan", outcome="wrong")
    record("hint", "scan", number=1)
    record("check", "ring", outcome="passed")
    found = [(event.kind, event.subject) for event in events()]
    assert found == [("check", "scan"), ("hint", "scan"), ("check", "ring")]
    assert [event.detail for event in events("scan", "hint")] == [{"number": 1}]
    assert len({event.uid for event in events()}) == 3


def test_home_is_what_the_variable_says_or_this_systems_place(own_home, monkeypatch):
    import platformdirs

    assert home() == own_home
    monkeypatch.delenv("LABKIT_HOME")
    assert str(home()) == platformdirs.user_data_dir("labkit", appauthor=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert home().name == ".labkit"


def test_an_error_within_a_transaction_undoes_all_of_it():
    def half(opened):
        practice.insert(opened, practice.Event(1.0, "check", "scan", {}))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.writing(half)
    assert events() == []


def write_many(ready, number):
    ready.wait(60)
    for _ in range(25):
        record("check", f"writer-{number}")


def test_four_processes_that_write_at_once_lose_nothing():
    fork = multiprocessing.get_context("fork")
    ready = fork.Barrier(4)
    writers = [fork.Process(target=write_many, args=(ready, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [len(events(f"writer-{number}")) for number in range(4)] == [25] * 4


def test_damaged_stores_are_kept_aside_and_new_ones_begin(own_home):
    own_home.mkdir()
    asides = [own_home / f"progress.corrupt-{number}.sqlite3" for number in (1, 2)]
    for content, aside in zip((b"first " * 200, b"second " * 200), asides, strict=True):
        path_of(own_home).write_bytes(content)
        with pytest.warns(ProgressWarning, match=aside.name):
            record("check", "scan")
        assert [event.subject for event in events()] == ["scan"]
    assert [aside.read_bytes()[:6] for aside in asides] == [b"first ", b"second"]


def test_a_page_that_was_overwritten_is_damage(own_home):
    store.writing(
        lambda opened: [
            practice.insert(opened, practice.Event(1.0, "check", "scan", {"text": "x" * 100}))
            for _ in range(300)
        ]
    )
    content = path_of(own_home).read_bytes()
    path_of(own_home).write_bytes(content[:8192] + b"\xff" * 40_000 + content[48_192:])
    with pytest.warns(ProgressWarning, match="corrupt-1"):
        assert events() == []


@pytest.mark.parametrize("detail", ["[1]", "{"])
def test_a_detail_that_is_no_json_object_is_damage(detail):
    record("check", "scan")
    change = "UPDATE events SET detail = ?"
    store.writing(lambda opened: opened.execute(change, (detail,)))
    with pytest.warns(ProgressWarning, match="JSON.*corrupt-1"):
        assert events() == []


def test_a_refused_event_is_no_reason_to_throw_the_store_away():
    record("check", "scan")
    with pytest.raises(sqlite3.IntegrityError):
        store.writing(lambda opened: opened.execute("INSERT INTO events (at_s) VALUES (NULL)"))
    record("check", "half a character \ud800")
    assert [event.subject for event in events()] == ["scan", "half a character ?"]


@pytest.mark.parametrize("folder", ["a file", "~nobody-of-this-name/x"])
def test_a_home_that_cannot_be_made_is_a_warning(tmp_path, monkeypatch, folder):
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", folder)
    with pytest.warns(ProgressWarning, match=folder):
        record("check", "scan")
    with pytest.warns(ProgressWarning, match=folder):
        assert events() == []


def test_a_store_that_somebody_else_holds_is_waited_for_and_then_a_warning(own_home, monkeypatch):
    record("check", "scan")
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    other = sqlite3.connect(path_of(own_home))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.warns(ProgressWarning, match="locked"):
        record("check", "ring")
    other.close()
    assert [event.subject for event in events()] == ["scan"]
    assert os.listdir(own_home) == ["progress.sqlite3"]


def test_a_store_of_a_newer_labkit_is_refused_and_left_alone(own_home):
    record("check", "scan")
    newer = sqlite3.connect(path_of(own_home))
    newer.execute(f"PRAGMA user_version = {store.VERSION + 1}")
    newer.close()
    before = path_of(own_home).read_bytes()
    with pytest.warns(ProgressWarning, match=f"version {store.VERSION + 1}"):
        record("check", "ring")
    with pytest.warns(ProgressWarning, match="newer"):
        assert events() == []
    assert path_of(own_home).read_bytes() == before
    assert os.listdir(own_home) == ["progress.sqlite3"]
