"""Stores of the first labkit become today's, whole, whoever opens them and whenever they die."""

import os
import random
import shutil
import signal
import sqlite3
import time

import pytest

from labkit.progress import Event, ProgressWarning, events, practice, record, store
from tests.progress_stores import all_at_once, forked, write_version_0


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def version_of(folder):
    opened = sqlite3.connect(folder / "progress.sqlite3")
    try:
        return opened.execute("PRAGMA user_version").fetchone()[0]
    finally:
        opened.close()


def test_version_0_is_migrated_without_loss(own_home):
    write_version_0(own_home, ["scan", "ring", "scan"])
    found = events()
    assert [event.subject for event in found] == ["scan", "ring", "scan"]
    assert {(event.at_s, event.kind, str(event.detail)) for event in found} == {
        (1.5, "check", "{'n': 1}")
    }
    assert len({event.uid for event in found}) == 3
    assert version_of(own_home) == store.VERSION
    assert practice.answer("card/co-8", "good").num_answers == 1


def test_two_copies_of_an_old_store_give_its_events_the_same_names(tmp_path, monkeypatch):
    names = []
    for copy in ("one", "other"):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path / copy))
        write_version_0(tmp_path / copy, ["scan", "ring", "scan"])
        names.append([event.uid for event in events()])
    assert names[0] == names[1]


def test_an_old_labkit_may_go_on_writing_to_a_store_of_todays(own_home):
    record("check", "scan")
    old = sqlite3.connect(own_home / "progress.sqlite3")
    old.execute("INSERT INTO events (at_s, kind, subject, detail) VALUES (9e9, 'check', 'x', '{}')")
    old.commit()
    old.close()
    assert [event.subject for event in events()] == ["scan", "x"]
    assert len(events()[1].uid) == 32


def open_and_record(number):
    record("check", f"opener-{number}")
    return len(events())


def test_processes_that_open_an_old_store_at_once_migrate_it_once(own_home):
    for num_old in (0, 500, 500):
        if num_old:
            write_version_0(own_home, [f"old-{number}" for number in range(num_old)])
        all_at_once(open_and_record, 4)
        subjects = sorted(event.subject for event in events())
        assert subjects == sorted(
            [f"old-{number}" for number in range(num_old)] + [f"opener-{n}" for n in range(4)]
        )
        assert not list(own_home.glob("*corrupt*"))
        shutil.rmtree(own_home)


def test_a_kill_in_the_middle_leaves_the_old_store_or_the_new_one(own_home):
    subjects = [f"old-{number}" for number in range(1000)]
    write_version_0(own_home, subjects)
    old = (own_home / "progress.sqlite3").read_bytes()
    draws, longest_s, left = random.Random(0), 0.02, []
    while len(left) < 12 or (len(set(left)) == 1 and len(left) < 60):
        shutil.rmtree(own_home)
        own_home.mkdir()
        (own_home / "progress.sqlite3").write_bytes(old)
        pid, pipe = forked(events)
        time.sleep(draws.uniform(longest_s / 2, longest_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pipe)
        left.append(version_of(own_home))
        assert [event.subject for event in events()] == subjects
        assert version_of(own_home) == store.VERSION
        longest_s *= 0.8 if left[-1] else 1.3  # towards the moment of the commit
    assert set(left) == {0, store.VERSION}


def test_a_step_that_fails_changes_nothing(own_home, monkeypatch):
    write_version_0(own_home, ["scan"])

    def fails(opened):
        opened.execute("CREATE TABLE half (x)")
        raise sqlite3.OperationalError("no room for the second table")

    with monkeypatch.context() as patch:
        patch.setattr(store, "STEPS", (*store.STEPS, fails))
        patch.setattr(store, "VERSION", len(store.STEPS))
        with pytest.warns(ProgressWarning, match="no room for the second table"):
            assert events() == []
    assert version_of(own_home) == 0
    assert [event.subject for event in events()] == ["scan"]


def test_a_store_that_becomes_newer_while_it_is_open_is_refused_too(own_home, monkeypatch):
    record("check", "scan")
    checks = []

    def upgraded_meanwhile(opened):
        if not checks:
            newer = sqlite3.connect(own_home / "progress.sqlite3")
            newer.execute(f"PRAGMA user_version = {store.VERSION + 1}")
            newer.close()
        checks.append(opened)

    monkeypatch.setattr(store, "upgrade", upgraded_meanwhile)
    with pytest.warns(ProgressWarning, match="newer labkit"):
        record("check", "ring")
    assert [event.subject for event in events()] == ["scan"]


def test_an_event_is_what_it_was_in_the_first_labkit():
    event = Event(1.0, "check", "scan", {"n": 1})
    assert (event.at_s, event.kind, event.subject, event.detail) == (1.0, "check", "scan", {"n": 1})
