"""Question cards in a notebook whose progress store is broken, damaged or without fsrs."""

import sys
from html import unescape

import pytest

from labkit import progress
from labkit.notebook import card
from labkit.progress import practice
from labkit.progress.clock import ProgressWarning, store_path
from tests.widget_tree import buttons, press, words


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def broken(home):
    """No store can be where a file is."""
    home.write_text("a file where the folder should be")
    return home


def answers():
    return progress.events(kind="answer")


def revealed():
    sitting = card("co-8")
    press(sitting._widget, "Show")
    return sitting


def test_a_grade_that_cannot_be_stored_is_said_and_can_be_tried_again(broken, recwarn):
    sitting = revealed()
    press(sitting._widget, "good")
    reported = unescape(words(sitting._widget))
    assert "not stored" in reported and "✓" not in reported and str(store_path()) in reported
    assert not sitting.question.is_stored and sitting.summary == "1 answer: 1 good"
    broken.unlink()
    press(sitting._widget, "hard")
    assert sitting.question.is_stored and "✓ Graded <b>hard</b>" in words(sitting._widget)
    assert "could not" not in words(sitting._widget)
    assert [event.detail["rating"] for event in answers()] == ["hard"]
    press(sitting._widget, "Next")
    assert "1 answer: 1 hard" in words(sitting._widget)
    # Said on the page, not in a log; a ResourceWarning may be about another test's garbage.
    assert [each for each in recwarn if issubclass(each.category, ProgressWarning)] == []


def test_what_cannot_be_stored_is_not_asked_forever(broken):
    sitting = card("co")
    seen = [sitting.question.card.id]
    for _ in range(3):
        press(sitting._widget, "Show")
        press(sitting._widget, "good")
        press(sitting._widget, "Next")
        seen.append(sitting.question.card.id)
    assert len(set(seen)) == 4


def test_a_damaged_store_is_kept_aside_and_the_answer_goes_into_a_fresh_one(home):
    home.mkdir()
    store_path().write_bytes(b"no database" * 100)
    sitting = card("co-8")
    assert "is damaged" in words(sitting._widget)
    press(sitting._widget, "Show")
    press(sitting._widget, "good")
    assert sitting.question.is_stored and len(answers()) == 1


def test_without_fsrs_a_grade_is_stored_and_nothing_is_promised(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsrs", None)
    sitting = revealed()
    assert buttons(sitting._widget)[1:5] == list(practice.RATINGS)
    press(sitting._widget, "good")
    assert len(answers()) == 1
    assert "stored" in words(sitting._widget) and "pip install fsrs" in words(sitting._widget)
