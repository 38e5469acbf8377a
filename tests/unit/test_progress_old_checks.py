"""Passes from before there were answers count as practice, once, wherever they come in."""

import json
import sys

import pytest

from labkit.progress import clock, events, exchange, practice, scheduling, statistics
from labkit.progress.practice import record_check
from tests.progress_stores import write_old_events

DAY_S = 86_400


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def old(folder, *steps, name="scan", begin_s=1.7e9):
    """A store of the first labkit: a step is an outcome, or "hint", "solution" or "reset"."""
    rows = []
    for number, step in enumerate(steps):
        is_check = step not in ("hint", "solution", "reset")
        detail = json.dumps({"outcome": step} if is_check else {})
        rows.append((begin_s + number * DAY_S, "check" if is_check else step, name, detail))
    write_old_events(folder, rows)


def ratings(name="scan"):
    return [event.detail["rating"] for event in events(f"exercise/{name}", "answer")]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["passed"], ["good"]),
        (["wrong", "hung", "passed", "passed"], ["again", "hard"]),
        (["hint", "passed"], ["hard"]),
        (["solution", "passed"], ["again"]),
        (["not attempted"], []),
        (["passed", "reset", "crashed"], ["good", "again"]),
    ],
)
def test_old_checks_are_rated_as_todays(own_home, steps, expected):
    old(own_home, *steps)
    assert ratings() == expected
    known = practice.state("exercise/scan")
    assert known is None if not expected else known.num_answers == len(expected)


def test_they_count_at_the_time_of_the_check_and_are_what_events_rebuild(own_home):
    old(own_home, "wrong", "passed", begin_s=1.7e9)
    known = practice.state("exercise/scan")
    assert known.last_s == 1.7e9 + DAY_S
    assert scheduling.rebuilt(events()) == {"exercise/scan": known}
    (mastery,) = statistics.mastery({"one": ["exercise/scan"]}, now_s=known.last_s).values()
    assert mastery.num_seen == 1 and mastery.value > 0.9


def test_a_check_of_no_known_outcome_makes_no_answer(own_home):
    write_old_events(own_home, [(1.5, "check", "scan", '{"n": 1}')])
    assert ratings() == []


def test_an_exercise_that_has_answers_is_left_alone(tmp_path):
    record_check("scan", attempted=True, passed=False, outcome="wrong")
    record_check("scan", attempted=True, passed=True, outcome="passed")
    with_more = tmp_path / "more.json"
    exchange.export_json(with_more)
    document = json.loads(with_more.read_text())
    check = {"kind": "check", "subject": "scan", "detail": {"outcome": "hung"}}
    document["events"].append({"uid": "b2", "at_s": 1.7e9, **check})
    with_more.write_text(json.dumps(document))
    assert exchange.import_json(with_more).num_added == 1
    assert ratings() == ["again", "hard"]


def test_practice_goes_on_from_them(own_home):
    old(own_home, "passed")
    record_check("scan", attempted=True, passed=True, outcome="passed")  # the file was still there
    assert ratings() == ["good"]


def test_two_copies_of_an_old_store_agree(tmp_path, monkeypatch):
    found = []
    for copy in ("one", "other"):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path / copy))
        old(tmp_path / copy, "wrong", "passed")
        found.append(events())
    assert found[0] == found[1]
    exchange.export_json(tmp_path / "other.json")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "one"))
    assert exchange.import_json(tmp_path / "other.json").num_added == 0
    assert practice.state("exercise/scan").num_answers == 2


def test_a_file_that_brings_checks_without_answers_brings_practice(tmp_path):
    event = {"at_s": 1.7e9, "kind": "check", "subject": "scan", "detail": {"outcome": "passed"}}
    document = {"format": "labkit-progress", "version": 1, "events": [{"uid": "a1", **event}]}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    for num_added in (1, 0):
        assert exchange.import_json(path).num_added == num_added
        assert ratings() == ["good"]
    assert practice.state("exercise/scan").last_s == 1.7e9


def test_without_fsrs_they_are_answers_and_scheduled_with_the_next_one(own_home, monkeypatch):
    old(own_home, "passed")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fsrs", None)
        assert ratings() == ["good"] and practice.state("exercise/scan") is None
    assert practice.answer("exercise/scan", "good", at_s=clock.now_s()).num_answers == 2
