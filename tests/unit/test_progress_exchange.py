"""Export and import: everything goes through, nothing twice, and a bad file changes nothing."""

import json
import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.progress import clock, events, practice, record, scheduling
from labkit.progress.exchange import ExchangeError, Imported, export_json, import_json
from tests.progress_stores import write_version_0

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


def test_an_old_store_is_exported_too_and_its_copy_adds_nothing(tmp_path, own_home, machine):
    write_version_0(own_home, ["scan", "ring"])
    assert export_json(tmp_path / "old.json") == 2
    machine("b")
    write_version_0(tmp_path / "b", ["scan", "ring"])
    assert import_json(tmp_path / "old.json") == Imported(0, 2)


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
            patched = {
                key: value for key, value in detail.items() if key not in ("kind", "subject")
            }
            record("note", subject, **patched)
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
    'must be "labkit-progress"': lambda d: d.update(format="anki"),
    "update labkit": lambda d: d.update(version=2),
    "whole number from 1": lambda d: d.update(version="1"),
    '"version" is True': lambda d: d.update(version=True),
    '"events" must be a list': lambda d: d.update(events={}),
    "needs exactly uid, at_s, kind, subject, detail; it has 7": lambda d: d["events"].append(7),
    "it has at_s, detail, extra": change(answer_in, "extra", 1),
    "at_s is '1', and no float": change(answer_in, "at_s", "1"),
    "at_s is True": change(answer_in, "at_s", True),
    "at_s=nan is no time": change(answer_in, "at_s", math.nan),
    "at_s=-1": change(answer_in, "at_s", -1),
    "at_s=1e.300": change(answer_in, "at_s", 1e300),
    "kind is None": change(answer_in, "kind", None),
    "subject is empty": change(answer_in, "subject", ""),
    "half a character": change(answer_in, "subject", "card/\ud800"),
    "detail is \\[\\], and no dict": change(answer_in, "detail", []),
    "uid 'A B' is none": change(answer_in, "uid", "A B"),
    "has the uid of event 1": lambda d: d["events"].append(d["events"][0]),
    "subject 'co-8' is not one": change(answer_in, "subject", "co-8"),
    "rating 'fine'": change_detail("rating", "fine"),
    "rating \\[\\]": change_detail("rating", []),
    "settings 'x', which the file does not hold": change_detail("scheduler", "x"),
    "answer's scheduler is 3": change_detail("scheduler", 3),
    "mock's score is 'x', and no float": add("mock", minutes=30, score="x"),
    "score is nan; it is a share": add("mock", minutes=30, score=math.nan),
    "mock's minutes is None": add("mock", score=0.5),
    "prediction's text is 3": add("prediction", text=3, value=3.0, dimension=""),
    "prediction's value is True": add("prediction", text="3", value=True, dimension=""),
    "check's outcome is \\[\\]": add("check", outcome=[]),
    "check's diagnosis is 3": add("check", outcome="wrong", diagnosis=3),
    "hint's number is '1'": add("hint", number="1"),
    "vote's verdict is \\[\\]": add("vote", verdict=[]),
    "not those that have this name": lambda d: settings_in(d)["detail"].update(parameters=[]),
    "have the uid 'mine'": change(settings_in, "uid", "mine"),
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


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b"null"])
def test_what_is_no_export_at_all_is_refused(tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ExchangeError, match="bad.json"):
        import_json(tmp_path / "bad.json")


def test_settings_that_cannot_schedule_undo_the_import(tmp_path, machine):
    from labkit.progress import scheduling

    document = exported(tmp_path)
    for event in [each for each in document["events"] if each["kind"] == "scheduler"]:
        event["detail"]["maximum_interval"] = 10**9
        event["detail"]["parameters"][:4] = [100.0] * 4
        event["detail"]["desired_retention"] = 1e-9
        old, event["subject"] = event["subject"], scheduling.name_of(event["detail"])
        event["uid"] = scheduling.uid_of_settings(event["subject"])
        for answer in document["events"]:
            if answer["detail"].get("scheduler") == old:
                answer["detail"]["scheduler"] = event["subject"]
    (tmp_path / "bad.json").write_text(json.dumps(document))
    machine("b")
    with pytest.raises(ExchangeError, match="do not let .* be scheduled.*nothing was imported"):
        import_json(tmp_path / "bad.json")
    assert events() == []


def test_an_event_that_was_edited_is_refused(tmp_path):
    document = exported(tmp_path)
    answer_in(document)["detail"]["rating"] = "easy"
    (tmp_path / "bad.json").write_text(json.dumps(document))
    before = practice.all_states()
    with pytest.raises(ExchangeError, match="one of them was edited; nothing was imported"):
        import_json(tmp_path / "bad.json")
    assert practice.all_states() == before


def test_a_missing_file_and_a_missing_folder_are_clear_errors(tmp_path):
    with pytest.raises(ExchangeError, match=r"none\.json could not be read"):
        import_json(tmp_path / "none.json")
    with pytest.raises(ExchangeError, match="could not be written"):
        export_json(tmp_path / "none" / "all.json")


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
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    with pytest.raises(ExchangeError, match="could not be read"):
        export_json(tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_times_of_an_export_come_from_the_one_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "now_s", lambda: 1234.5)
    record("hint", "scan", number=1)
    export_json(tmp_path / "all.json")
    document = json.loads((tmp_path / "all.json").read_text())
    assert (document["exported_at_s"], document["events"][0]["at_s"]) == (1234.5, 1234.5)
