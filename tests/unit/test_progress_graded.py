"""Checks and predictions as answers: each mistake counts once, and a copy counts for nothing."""

import pytest

from labkit.notebook import predict, reveal
from labkit.progress import clock, events, record
from labkit.progress.practice import record_check, record_judged, record_tried


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def ratings(subject):
    return [event.detail["rating"] for event in events(subject, "answer")]


def after(*steps):
    """The ratings of an exercise after checks ("passed", "wrong", ...) and other events."""
    for step in steps:
        if step in ("reset", "hint", "solution"):
            record(step, "scan")
        else:
            attempted = step != "not attempted"
            record_check("scan", attempted=attempted, passed=step == "passed", outcome=step)
    return ratings("exercise/scan")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["passed"], ["good"]),
        (["wrong"], ["again"]),
        (["wrong", "hung", "crashed"], ["again"]),
        (["over budget", "passed"], ["again", "hard"]),
        (["hint", "passed"], ["hard"]),
        (["solution", "passed"], ["again"]),
        (["hint", "wrong", "solution", "passed"], ["again", "again"]),
        (["not attempted"], []),
        (["not attempted", "passed"], ["good"]),
        (["passed", "passed", "wrong", "passed"], ["good"]),
        (["passed", "solution", "passed"], ["good"]),
        (["passed", "reset", "passed"], ["good", "good"]),
        (["wrong", "passed", "reset", "wrong", "passed"], ["again", "hard", "again", "hard"]),
        (["solution", "reset", "passed"], ["good"]),
    ],
)
def test_what_a_check_counts(steps, expected):
    assert after(*steps) == expected
    checks = [step for step in steps if step not in ("reset", "hint", "solution")]
    assert [event.detail["outcome"] for event in events("scan", "check")] == checks


def test_a_prediction_is_judged_by_its_box_where_that_knows_the_answer():
    predict("bytes", answer=100, tolerance=0.1).commit("105")
    predict("steps", answer=6).commit("7")
    assert (ratings("prediction/bytes"), ratings("prediction/steps")) == (["good"], ["again"])


def test_a_prediction_is_judged_by_what_was_measured_and_once():
    predict("bytes").commit("105")
    assert ratings("prediction/bytes") == []
    for _ in range(3):
        reveal("bytes", 100, tolerance=0.1)
    assert ratings("prediction/bytes") == ["good"]


def test_without_a_prediction_or_a_vote_nothing_is_judged():
    reveal("bytes", 100)
    record_judged("bytes", right=True)
    record_tried("ring-8", right=True)
    assert events() == []


def test_who_commits_again_after_the_answer_is_copying_until_another_day(monkeypatch):
    box = predict("steps", answer=6)
    box.commit("7")
    box.commit("6")
    assert ratings("prediction/steps") == ["again"]
    tomorrow_s = clock.now_s() + 86_400
    monkeypatch.setattr(clock, "now_s", lambda: tomorrow_s)
    predict("steps", answer=6).commit("6")
    assert ratings("prediction/steps") == ["again", "good"]
