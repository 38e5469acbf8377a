"""Practice: answers are scheduled, and every state follows from the events."""

import itertools
import math
import sys
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.progress import ProgressWarning, clock, events, practice, scheduling, store

DAY_S = 86_400.0
START_S = 1.8e9
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["card/co-8", "drill/bubble_share", "exercise/scan"]),
        st.sampled_from(practice.RATINGS),
        # Minutes and days; a time may come twice, and earlier than the one before.
        st.integers(0, 40).map(lambda step: START_S + step * 0.3 * DAY_S)
        | st.integers(0, 20).map(lambda minutes: START_S + 60.0 * minutes),
    ),
    max_size=10,
)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def at(monkeypatch, now_s):
    monkeypatch.setattr(clock, "now_s", lambda: now_s)


def test_an_answer_is_an_event_and_a_state(monkeypatch):
    at(monkeypatch, START_S)
    state = practice.answer("card/co-8", "good", seconds=41)
    assert practice.state("card/co-8") == state == practice.all_states()["card/co-8"]
    (answer,) = events("card/co-8", "answer")
    assert (answer.at_s, answer.uid) == (START_S, state.last_uid)
    (in_force,) = events(kind="scheduler")
    assert answer.detail == {"seconds": 41, "rating": "good", "scheduler": in_force.subject}
    assert in_force.detail["desired_retention"] == 0.9 and not in_force.detail["enable_fuzzing"]


def test_better_ratings_wait_longer_and_again_comes_back_while_one_sits_there(monkeypatch):
    at(monkeypatch, START_S)
    due_s = [practice.answer(f"card/{r}", r).due_s for r in practice.RATINGS]
    assert due_s == sorted(due_s) and due_s[0] == START_S + 600
    assert due_s[2] - START_S >= DAY_S and due_s[3] > due_s[2]


def test_an_exercise_and_a_prediction_wait_for_another_day(monkeypatch):
    at(monkeypatch, START_S)
    for subject in ("exercise/scan", "prediction/ring-bytes"):
        assert practice.answer(subject, "again").due_s == START_S + DAY_S


def test_what_is_due_comes_with_the_longest_overdue_first():
    practice.answer("card/late", "again", at_s=START_S + 5)
    practice.answer("card/first", "again", at_s=START_S)
    practice.answer("drill/later", "easy", at_s=START_S)
    assert practice.due(START_S + 599) == []
    assert [state.subject for state in practice.due(START_S + 605)] == ["card/first", "card/late"]
    assert [state.subject for state in practice.due(START_S + 90 * DAY_S, "drill/")] == [
        "drill/later"
    ]


def test_recall_fades_by_the_stability_that_fsrs_gives():
    state = practice.answer("card/co-8", "easy", at_s=START_S)
    assert practice.retrievability("card/co-9", START_S) is None
    assert practice.retrievability("card/co-8", START_S) == 1.0
    days = math.ceil(state.stability)
    just_under = practice.retrievability("card/co-8", START_S + days * DAY_S)
    just_over = practice.retrievability("card/co-8", START_S + (days - 1) * DAY_S)
    assert just_under < 0.9 < just_over


@pytest.mark.parametrize("before", [(), ("again",), ("again", "good")])
def test_the_next_intervals_are_those_that_an_answer_gets(before):
    for name in ("x", *practice.RATINGS):
        for minute, rating in enumerate(before):
            practice.answer(f"card/{name}", rating, at_s=START_S + 60 * minute)
    reported = practice.next_intervals("card/x", START_S + DAY_S)
    for rating in practice.RATINGS:
        state = practice.answer(f"card/{rating}", rating, at_s=START_S + DAY_S)
        assert reported[rating] == practice.in_words(state.due_s - START_S - DAY_S)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 minutes"),
        (60, "1 minute"),
        (3599, "1 hour"),
        (23.6 * 3600, "1 day"),
        (59 * DAY_S, "59 days"),
        (61 * DAY_S, "2 months"),
        (364 * DAY_S, "1 year"),
    ],
)
def test_a_time_to_wait_in_words(seconds, words):
    assert practice.in_words(seconds) == words


@pytest.mark.parametrize("subject", ["co-8", "card/", "cards/co-8", "", "/"])
def test_another_subject_is_refused(subject):
    for refused in (lambda: practice.answer(subject, "good"), lambda: practice.state(subject)):
        with pytest.raises(ValueError, match=f"'{subject}'"):
            refused()


def test_another_rating_time_or_detail_is_refused():
    bad = [("fine", {}), *(("good", {"at_s": at_s}) for at_s in (math.nan, -1.0, 1e15))]
    for rating, detail in [*bad, ("good", {"scheduler": "mine"})]:
        with pytest.raises(ValueError, match="fine|at_s|scheduler"):
            practice.answer("card/co-8", rating, **detail)
    assert events() == []


def test_an_answer_that_cannot_be_stored_is_a_warning_and_no_state(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    with pytest.warns(ProgressWarning):
        assert practice.answer("card/co-8", "good") is None
    with pytest.warns(ProgressWarning):
        assert practice.due() == []


@given(ANSWERS, st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_states_follow_from_the_set_of_answers_in_whatever_order_they_came_in(answers, random):
    named = [
        practice.Event(at_s, "answer", subject, {"rating": rating}, f"uid-{number}")
        for number, (subject, rating, at_s) in enumerate(answers)
    ]
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setenv("LABKIT_HOME", folder)
            for event in named:
                store.writing(lambda opened, event=event: scheduling.add_answer(opened, event))
            assert practice.all_states() == scheduling.rebuilt(events())
            found.append(practice.all_states())
        random.shuffle(named)
    assert found[0] == found[1]
    assert sum(state.num_answers for state in found[0].values()) == len(answers)


def test_states_are_stored_and_not_made_again_by_each_answer(monkeypatch):
    """The fast way is taken: or the tests above would compare a rebuild with a rebuild."""
    practice.answer("card/co-8", "good", at_s=START_S)
    monkeypatch.setattr(scheduling, "replay", None)
    assert practice.answer("card/co-8", "good", at_s=START_S + DAY_S).num_answers == 2


def test_a_change_of_settings_leaves_the_states_of_earlier_answers_as_they_were(monkeypatch):
    practice.answer("card/co-8", "good", at_s=START_S)
    before = practice.answer("card/co-8", "good", at_s=START_S + 3 * DAY_S)
    scheduling._settings.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(scheduling, "DESIRED_RETENTION", 0.8)
        practice.answer("card/co-8", "good", at_s=START_S + 20 * DAY_S)
        rebuilt = scheduling.rebuilt(events())
    scheduling._settings.cache_clear()
    assert len(events(kind="scheduler")) == 2
    assert practice.all_states() == rebuilt == scheduling.rebuilt(events())
    assert scheduling.rebuilt(events()[:-1])["card/co-8"] == before
    practice.answer("card/co-8", "hard", at_s=START_S + 5 * DAY_S)  # late: replays the others
    assert practice.all_states() == scheduling.rebuilt(events())


def test_without_fsrs_answers_are_kept_and_scheduled_later(monkeypatch):
    practice.answer("card/co-8", "good", at_s=START_S)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fsrs", None)
        assert practice.answer("card/co-8", "good", at_s=START_S + 3 * DAY_S) is None
        assert practice.state("card/co-8").num_answers == 1
    assert practice.answer("card/co-8", "easy", at_s=START_S + 9 * DAY_S).num_answers == 3
    assert practice.all_states() == scheduling.rebuilt(events())


def test_hundreds_of_answers_stay_within_the_calendar():
    at_s = START_S
    for number, rating in zip(range(60), itertools.cycle(["easy", "good", "easy", "hard"])):
        state = practice.answer("card/co-8", rating, at_s=at_s)
        assert state.due_s - at_s <= 365 * DAY_S, number
        at_s = state.due_s
    assert 0 < practice.retrievability("card/co-8", at_s) <= 1
