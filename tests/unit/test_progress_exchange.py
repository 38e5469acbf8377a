"""Export and import: everything goes through, nothing twice, and a bad file changes nothing."""

import json
import math
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.progress import events, practice, record, scheduling
from labkit.progress.exchange import ExchangeError, Imported, export_json, import_json, write_whole

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Go to another machine: machine("b")."""
    return lambda name: monkeypatch.setenv("LABKIT_HOME", str(tmp_path / name))


def practise(offset=0.0):
    record("hint", "scan", number=1)
    for number, rating in enumerate(("good", "again", "easy", "hard")):
        practice.answer("card/co-8", rating, at_s=1.8e9 + number * DAY_S + offset)
        practice.answer("exercise/scan", rating, at_s=1.8e9 + number * DAY_S + offset)


def test_another_machine_has_all_of_it_and_nothing_twice(tmp_path, machine):
    practise()
    mine, my_states = events(), practice.all_states()
    assert export_json(tmp_path / "all.json") == len(mine) == 11  # two settings among them
    machine("b")
    assert import_json(tmp_path / "all.json") == Imported(11, 0)
    assert (sorted(events(), key=str), practice.all_states()) == (sorted(mine, key=str), my_states)
    assert import_json(tmp_path / "all.json") == Imported(0, 11)
    assert len(events()) == 11


def test_two_machines_that_exchange_their_events_agree(tmp_path, machine):
    for name, offset in (("a", 0.0), ("b", 0.4 * DAY_S)):
        machine(name)
        practise(offset)
        export_json(tmp_path / f"{name}.json")
    found = []
    for name, other in (("a", "b"), ("b", "a")):
        machine(name)
        assert import_json(tmp_path / f"{other}.json") == Imported(9, 2)  # the same settings
        assert practice.all_states() == scheduling.rebuilt(events())
        found.append((sorted(events(), key=str), practice.all_states()))
    assert found[0] == found[1]
    assert found[0][1]["card/co-8"].num_answers == 8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3), st.text(min_size=1))
@settings(max_examples=10)
def test_whatever_was_recorded_comes_through(details, subject):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", f"{folder}/a")
        for detail in details:
            record("note", subject, **{f"_{key}": value for key, value in detail.items()})
        mine = events()
        export_json(Path(folder, "all.json"))
        patch.setenv("LABKIT_HOME", f"{folder}/b")
        assert import_json(Path(folder, "all.json")).num_added == len(details)
        assert import_json(Path(folder, "all.json")).num_added == 0
        assert repr(sorted(events(), key=str)) == repr(sorted(mine, key=str))


def exported(tmp_path):
    practise()
    export_json(tmp_path / "all.json")
    return json.loads((tmp_path / "all.json").read_text())


def answer_in(document):
    return next(event for event in document["events"] if event["kind"] == "answer")


def settings_in(document):
    return next(event for event in document["events"] if event["kind"] == "scheduler")


def change(find, field, value):
    return lambda document: find(document).update({field: value})


def change_detail(field, value):
    return lambda document: answer_in(document)["detail"].update({field: value})


def add(kind, **detail):
    event = {"uid": "mine", "at_s": 1.8e9, "kind": kind, "subject": "x", "detail": detail}
    return lambda document: document["events"].append(event)


FAULTS = {
    "labkit-progress": lambda d: d.update(format="anki"),
    "version 2": lambda d: d.update(version=2),
    "events": lambda d: d.update(events={}),
    "it has 7": lambda d: d["events"].append(7),
    "extra": change(answer_in, "extra", 1),
    "at_s is '1'": change(answer_in, "at_s", "1"),
    "nan": change(answer_in, "at_s", math.nan),
    "A B": change(answer_in, "uid", "A B"),
    "event 1": lambda d: d["events"].append(d["events"][0]),
    "co-8": change(answer_in, "subject", "co-8"),
    "fine": change_detail("rating", "fine"),
    "settings 'x'": change_detail("scheduler", "x"),
    "score": add("mock", minutes=30, score="x"),
    "mine": change(settings_in, "uid", "mine"),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_file_is_refused_with_a_reason_and_nothing_changes(tmp_path, machine, reason):
    document = exported(tmp_path)
    machine("b")
    record("hint", "scan", number=1)
    before = events()
    FAULTS[reason](document)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(ExchangeError, match=reason):
        import_json(tmp_path / "bad.json")
    assert events() == before and practice.all_states() == {}


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"[]"])
def test_what_is_no_export_at_all_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ExchangeError, match="bad.json"):
        import_json(tmp_path / "bad.json")


def test_an_event_that_was_edited_is_refused(tmp_path):
    document = exported(tmp_path)
    answer_in(document)["detail"]["rating"] = "easy"
    (tmp_path / "bad.json").write_text(json.dumps(document))
    before = practice.all_states()
    with pytest.raises(ExchangeError, match=answer_in(document)["uid"]):
        import_json(tmp_path / "bad.json")
    assert practice.all_states() == before


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path, monkeypatch):
    exported(tmp_path)
    before = (tmp_path / "all.json").read_bytes()

    def fails(*_):
        raise OSError("no room")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ExchangeError, match="no room"):
        export_json(tmp_path / "all.json")
    assert (tmp_path / "all.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.json", "home"]


def test_a_store_that_cannot_be_read_is_not_exported_as_an_empty_one(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    with pytest.raises(ExchangeError, match="progress.sqlite3"):
        export_json(tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_a_file_keeps_its_mode_and_a_link_stays(tmp_path):
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.write_text("before")
    old.chmod(0o664)
    link.symlink_to(old)
    plain = tmp_path / "plain"
    plain.touch()
    for path in (link, new):
        write_whole(path, "after")
    assert link.is_symlink() and old.read_text() == new.read_text() == "after"
    assert stat.S_IMODE(old.stat().st_mode) == 0o664
    assert new.stat().st_mode == plain.stat().st_mode


def test_a_pipe_is_written_into_and_a_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "text")
