"""Streaks on the learner's calendar, what is due, mastery, and the table of exercises."""

import os
import time
from datetime import UTC, date, datetime

import pytest

from labkit.progress import Event, clock, practice, record, statistics
from labkit.progress.practice import record_check

DAY_S = 86_400.0
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"  # written out: no database of zones is needed


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.fixture
def zone():
    """Set the machine's time zone; it is put back."""
    before = os.environ.get("TZ")

    def set_zone(name):
        os.environ["TZ"] = name
        time.tzset()

    yield set_zone
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def utc_s(*parts):
    return datetime(*parts, tzinfo=UTC).timestamp()


def answered(*times_s):
    return [Event(at_s, "answer", "card/co-8", {}) for at_s in times_s]


def test_a_streak_ends_today_or_yesterday_and_breaks_at_a_gap(zone):
    zone("UTC")
    noon_s = utc_s(2026, 5, 10, 12)
    assert statistics.streak(noon_s, []) == 0
    assert statistics.streak(noon_s, answered(noon_s)) == 1
    assert statistics.streak(noon_s, answered(noon_s - DAY_S)) == 1
    assert statistics.streak(noon_s, answered(noon_s - 2 * DAY_S)) == 0
    days = [noon_s - back * DAY_S for back in (0, 1, 2, 4, 5)]
    assert statistics.streak(noon_s, answered(*days)) == 3


def test_days_begin_at_the_learners_midnight(zone):
    evening_s, night_s = utc_s(2026, 5, 10, 21, 59), utc_s(2026, 5, 10, 22, 1)
    zone("UTC")
    assert statistics.streak(night_s, answered(evening_s, night_s)) == 1
    zone(BERLIN)  # two hours ahead of UTC in May: one minute before midnight, and one after
    assert statistics.streak(night_s, answered(evening_s, night_s)) == 2
    assert clock.day_of(evening_s) == date(2026, 5, 10)
    assert clock.day_of(night_s) == date(2026, 5, 11)
    assert clock.day_of(night_s, UTC) == date(2026, 5, 10)


def test_a_day_of_23_hours_and_one_of_25_are_days(zone):
    zone(BERLIN)
    # 29 March 2026 has 23 hours: from 23:30 on the 28th to 00:15 on the 30th are 23.75.
    times_s = [utc_s(2026, 3, 28, 22, 30), utc_s(2026, 3, 29, 10), utc_s(2026, 3, 29, 22, 15)]
    assert statistics.streak(times_s[-1], answered(*times_s)) == 3
    assert statistics.streak(times_s[-1], answered(times_s[0], times_s[2])) == 1
    # 25 October 2026 has 25: 00:10 and 23:50 of it are 24 hours and 40 minutes apart.
    early_s, late_s = utc_s(2026, 10, 24, 22, 10), utc_s(2026, 10, 25, 22, 50)
    assert statistics.streak(late_s, answered(early_s, late_s)) == 1
    per_day = statistics.answers_per_day(3, late_s, answered(early_s, late_s))
    assert per_day == {date(2026, 10, 23): 0, date(2026, 10, 24): 0, date(2026, 10, 25): 2}


def test_reading_a_hint_or_checking_a_stub_is_no_practice():
    record("hint", "scan", number=1)
    record_check("scan", attempted=False, passed=False, outcome="not attempted")
    assert statistics.streak() == 0
    record("vote", "claim")
    assert statistics.streak() == 1


def test_due_counts_name_every_kind():
    for name in ("card/a", "card/b", "exercise/scan"):
        practice.answer(name, "again", at_s=1.8e9)
    kinds = ("card", "drill", "case", "exercise", "prediction", "claim")
    assert statistics.due_counts(1.8e9 + 601) == dict.fromkeys(kinds, 0) | {"card": 2}
    assert statistics.due_counts(1.8e9 + DAY_S)["exercise"] == 1


def test_mastery_is_the_mean_chance_of_recall_and_unseen_subjects_count_0():
    now_s = 1.8e9 + 3 * DAY_S
    practice.answer("card/a", "easy", at_s=1.8e9)
    practice.answer("card/b", "good", at_s=1.8e9)
    chances = [practice.retrievability(f"card/{name}", now_s) for name in "ab"]
    topics = {"one": ["card/a", "card/b", "card/c", "card/d"], "none": [], "new": ["card/z"]}
    found = statistics.mastery(topics, now_s)
    assert found["one"].value == pytest.approx(sum(chances) / 4)
    assert (found["one"].num_seen, found["one"].num_due, found["one"].num_subjects) == (2, 1, 4)
    assert found["none"].value == found["new"].value == 0.0
    assert statistics.mastery(topics, now_s + 90 * DAY_S)["one"].value < found["one"].value


@pytest.mark.parametrize("subject", ["card/a", "drill/a", "exercise/a"])
def test_what_was_just_answered_wrongly_is_not_mastered(subject):
    practice.answer(subject, "again", at_s=1.8e9)
    assert statistics.mastery({"one": [subject]}, 1.8e9 + 60)["one"].value == 0
    practice.answer(subject, "good", at_s=1.8e9 + DAY_S)
    assert statistics.mastery({"one": [subject]}, 1.8e9 + DAY_S + 60)["one"].value > 0.9


def test_the_table_of_exercises():
    record_check("scan", attempted=False, passed=False, outcome="not attempted")
    (stub,) = statistics.exercise_table(["scan"])
    assert stub.last_s is not None and not stub.is_started
    record("hint", "scan", number=1)
    record("hint", "scan", number=1)
    record("hint", "scan", number=2)
    for outcome in ("wrong", "passed", "passed"):
        record_check("scan", attempted=True, passed=outcome == "passed", outcome=outcome)
    record("solution", "scan")
    record("solution", "ring")
    scan, ring, new = statistics.exercise_table(["scan", "ring", "new"])
    assert (scan.num_tries, scan.num_hints, scan.solution_shown) == (3, 2, False)
    assert scan.is_started and scan.passed_s == pytest.approx(clock.now_s(), abs=60)
    assert (ring.num_tries, ring.solution_shown, ring.passed_s) == (0, True, None)
    assert new == statistics.ExerciseRow("new", 0, 0, False, None)
