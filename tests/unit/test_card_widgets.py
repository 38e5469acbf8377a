"""Question cards as a notebook asks them."""

from html import unescape

import pytest

from labkit import progress
from labkit.interview.cards import load_bank
from labkit.interview.cards.sitting import cards_of, rating_of
from labkit.notebook import card
from labkit.progress import clock, practice, store
from tests.widget_tree import buttons, entry, points, press, words

CARD = load_bank()["co-8"]
DAY_S = 86_400


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def answers():
    return progress.events(kind="answer")


def revealed(name="co-8"):
    sitting = card(name)
    press(sitting._widget, "Show")
    return sitting


def graded(rating, name="co-8"):
    sitting = revealed(name)
    press(sitting._widget, rating)
    return sitting


def test_the_answer_shows_when_asked_for_and_what_was_written_stays():
    sitting = card("co-8")
    page = sitting._widget
    assert CARD.prompt in unescape(words(page)) and "for senior" in words(page)
    entry(page).value = "It depends on alpha."
    assert "In a minute" not in words(page) and not points(page)
    press(page, "Show the answer")
    reported = words(page)
    followed = f"Follow-ups ({len(CARD.follow_ups)})"
    for section in ("In a minute", "Deeper", "The common mistake", followed):
        assert section in reported
    assert CARD.evidence[0].proof.split("(")[0] in reported
    assert CARD.sources[0].split(",")[0] in unescape(reported)
    press(page, "Hide the answer")
    assert "In a minute" not in words(page)
    assert entry(page).value == "It depends on alpha."
    assert not answers()  # and looking is no answer


def test_the_ticked_points_propose_a_grade():
    page = revealed()._widget
    assert [each.description for each in points(page)] == list(CARD.rubric)
    for number in range(len(CARD.rubric) + 1):
        if number:
            points(page)[number - 1].value = True
        proposed = rating_of(number, len(CARD.rubric))
        assert f"{number} of 5 points: <b>{proposed}</b>" in words(page)


def test_each_grade_says_when_the_card_would_come_back():
    for days_ago in (20, 9):
        practice.answer("card/co-8", "good", at_s=clock.now_s() - days_ago * DAY_S)
    waits = practice.next_intervals("card/co-8")
    page = revealed()._widget
    assert buttons(page)[1:5] == [f"{rating} · {wait}" for rating, wait in waits.items()]
    assert len(set(waits.values())) == 4


def test_the_grade_is_the_readers_and_the_missed_points_are_stored():
    sitting = revealed()
    points(sitting._widget)[1].value = True
    assert sitting.question.proposed == "again"
    press(sitting._widget, "good")
    (event,) = answers()
    assert event.subject == "card/co-8" and event.detail["rating"] == "good"
    assert event.detail["missed"] == [p for p in CARD.rubric if p != CARD.rubric[1]]
    assert event.detail["topic"] == "co-8"
    assert "<b>good</b>, 1 of 5 points" in words(sitting._widget)


def test_after_a_clock_that_was_ahead_the_time_to_wait_is_from_now():
    earlier = practice.answer("card/co-8", "good", at_s=clock.now_s() + 365 * DAY_S)
    reported = words(graded("good")._widget)
    wait_s = practice.state("card/co-8").due_s - clock.now_s()
    assert wait_s > 365 * DAY_S and practice.in_words(wait_s) in reported
    assert f"{clock.day_of(earlier.last_s):%d %b %Y}" in reported


def test_one_sitting_stores_once():
    sitting = graded("hard")
    assert sitting.question.grade("easy") and sitting.question.rating == "hard"
    assert [event.detail["rating"] for event in answers()] == ["hard"]
    assert buttons(sitting._widget) == ["Hide the answer", "A follow-up", "Next card"]
    assert all(each.disabled for each in points(sitting._widget))
    assert sitting.summary == "1 answer: 1 hard"


def test_who_was_graded_is_shown_where_to_look(monkeypatch, tmp_path):
    reported = words(graded("again")._widget)
    assert f'{CARD.place}"' in reported and "ipynb: " in reported
    assert f"exercises/{CARD.exercise}.py</a>" in reported


def test_the_next_card_is_what_is_due_and_starts_afresh():
    practice.answer("card/co-5", "again", at_s=clock.now_s() - 2 * DAY_S)
    sitting = graded("good")
    press(sitting._widget, "Next card")
    assert sitting.question.card.id == "co-5"
    assert "2 days overdue" in words(sitting._widget)
    assert not sitting.question.is_revealed and entry(sitting._widget).value == ""
    press(sitting._widget, "Show")
    press(sitting._widget, "easy")
    assert sitting.summary == "2 answers: 1 easy, 1 good"
    assert "2 answers: 1 easy, 1 good" in words(sitting._widget)


@pytest.mark.parametrize("name", ["co-8", " CO-8"])
def test_a_card_that_is_named_is_asked_though_it_is_not_due(name):
    practice.answer("card/co-8", "easy")
    sitting = card(name)
    assert sitting.question.card == CARD and "due in 8 days" in words(sitting._widget)
    assert card("co").question.card != CARD


def know_all(cards):
    """As if each had been answered just now."""

    def all_at_once(opened):
        from labkit.progress import scheduling
        from labkit.progress.event import Event

        for each in cards:
            event = Event(clock.now_s(), scheduling.ANSWER, f"card/{each.id}", {"rating": "easy"})
            scheduling.add_answer(opened, event)

    store.writing(all_at_once)


def test_where_nothing_is_due_the_box_says_when_and_offers_others():
    practice.answer("card/co-3", "good")  # is due sooner than an easy card
    know_all(each for each in cards_of("co") if each.id != "co-3")
    sitting = card("co")
    assert sitting.question is None
    assert "Nothing is due" in words(sitting._widget)
    assert buttons(sitting._widget) == ["Ask one early", "A new one from all topics"]
    press(sitting._widget, "Ask one early")
    assert sitting.question.card.id == "co-3"
    other = card("co")
    press(other._widget, "A new one")
    assert other.question.card not in cards_of("co")
    know_all(cards_of())
    assert buttons(card()._widget) == ["Ask one early"]


def test_a_name_that_is_none_gets_near_ones():
    assert "'pipelines' is no card" in repr(card("pipelines"))
    assert "near it: pipeline" in card("pipelines").html


def test_static_forms_are_the_same_for_every_reader():
    def forms(what):
        bundle = card(what)._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in bundle
        return bundle["text/plain"], bundle["text/html"]

    before = forms("co-8"), forms("co"), forms(None)
    graded("again")
    assert (forms("co-8"), forms("co"), forms(None)) == before
    (text, html), (of_group, _), (of_all, _) = before
    assert CARD.prompt in text and CARD.prompt in html
    assert "Collectives and networks" in of_group and "all topics" in of_all
    assert len(html) < 1000 and "Run this cell" in html


def test_every_control_has_words_on_it():
    page = graded("good")._widget
    controls = [entry(page), *points(page)]
    assert all(each.description for each in controls) and all(buttons(page))
