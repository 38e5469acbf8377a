"""Drills as a notebook asks them."""

import asyncio
from html import unescape

import pytest

from labkit import progress
from labkit.interview.drills import DRILLS
from labkit.notebook import drill
from tests.virtual_loop import run_virtually
from tests.widget_tree import buttons, entry, press, words


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def asking():
    return drill("bubble_of_total", seed=3)


def answers():
    return progress.events(kind="answer")


def submit(asking, text):
    entry(asking._widget).value = text
    press(asking._widget, "Submit")


def right(asking):
    return asking.question.asked.question.answer_text


def trap(asking):
    question = asking.question.asked.question
    return question.text_of(question.traps[0].value, question.digits)


def test_the_question_shows_its_drill_and_the_unit_of_the_answer(asking):
    reported = unescape(words(asking._widget))
    assert DRILLS["bubble_of_total"].title in reported and "question 1" in reported
    assert asking.question.asked.question.prompt in reported
    assert entry(asking._widget).description == "Your answer, in %"


def test_a_right_answer_ends_the_question_and_is_stored(asking):
    submit(asking, right(asking))
    reported = unescape(words(asking._widget))
    assert "Right." in reported and "✓" in reported
    assert all(step in reported for step in asking.question.asked.question.steps)
    assert "stored, asked again in" in reported
    (event,) = answers()
    assert event.subject == "drill/bubble_of_total" and event.detail["tries"] == 1
    assert entry(asking._widget).disabled and buttons(asking._widget) == ["Another"]
    assert "1 of 1 right" in reported


def test_a_trap_is_named_and_leaves_one_more_try(asking):
    submit(asking, trap(asking))
    reported = words(asking._widget)
    assert "A known trap" in reported and "✗" in reported and "One more try" in reported
    assert "Answer:" not in reported and not answers()
    submit(asking, right(asking))
    (event,) = answers()
    assert event.detail["rating"] == "hard" and event.detail["traps"]
    assert "at the second try" in words(asking._widget)


def test_what_cannot_be_read_does_not_count(asking):
    for text in ("thirty", "3 ms", "", "  "):
        submit(asking, text)
        assert "Answer:" not in words(asking._widget)
    assert asking.question.asked.tries == 0
    submit(asking, "thirty")
    assert "not count" in words(asking._widget)
    assert "Try 30.4" in words(asking._widget)


def test_wrong_twice_shows_the_way_to_the_answer(asking):
    submit(asking, "99")
    submit(asking, "98")
    reported = words(asking._widget)
    assert f"Answer: {right(asking)}" in reported and "One more try" not in reported
    assert [event.detail["rating"] for event in answers()] == ["again"]
    assert asking.question.submit(right(asking)) is None  # over is over
    assert len(answers()) == 1


def test_giving_up_shows_the_way_and_counts_once(asking):
    press(asking._widget, "Show the answer")
    asking.question.finish()
    assert [event.detail["rating"] for event in answers()] == ["again"]
    assert "Answer:" in words(asking._widget)


def test_another_asks_for_other_numbers(asking):
    first = asking.question.asked.question.prompt
    submit(asking, right(asking))
    press(asking._widget, "Another")
    assert asking.question.asked.question.prompt != first
    assert "question 2" in words(asking._widget) and entry(asking._widget).value == ""
    submit(asking, "99")
    submit(asking, "98")
    assert asking.summary.startswith("1 of 2 right")


def test_the_same_seed_asks_the_same():
    prompts = [drill("co", seed=7).question.asked.question.prompt for _ in range(2)]
    assert prompts[0] == prompts[1]
    assert prompts[0] != drill("co", seed=8).question.asked.question.prompt


def test_a_name_that_is_none_gets_near_ones():
    assert "near it: " in repr(drill("bubbles")) and "bubble_of_total" in drill("bubbles").html


def test_what_cannot_be_stored_is_said(asking, home):
    home.write_text("a file where the folder should be")
    submit(asking, right(asking))
    reported = words(asking._widget)
    assert "not stored" in reported and "could not be written" in reported and "Answer:" in reported


def test_static_forms_have_the_question_only_where_a_seed_fixes_it(asking):
    bundle = asking._repr_mimebundle_()
    prompt = asking.question.asked.question.prompt
    assert prompt in bundle["text/plain"] and prompt in unescape(bundle["text/html"])
    submit(asking, right(asking))
    press(asking._widget, "Another")
    assert asking._repr_mimebundle_()["text/html"] == bundle["text/html"]
    free = [drill("bubble_of_total")._repr_mimebundle_()["text/plain"] for _ in range(3)]
    assert len(set(free)) == 1 and DRILLS["bubble_of_total"].title in free[0]


def pressed_enter(field):
    """Send what a page sends when Enter is pressed: the event, and not the text."""
    field._handle_string_msg(field, {"event": "submit"}, [])


def test_enter_takes_the_text_that_the_page_sends_after_it(asking):
    async def typed():
        field = entry(asking._widget)
        field.value = "2"
        pressed_enter(field)
        await asyncio.sleep(0)
        assert asking.question.asked.tries == 0
        field.value = right(asking)
        assert asking.question.asked.is_right and asking.question.asked.tries == 1
        await asyncio.sleep(0.3)  # and what was waited for does not come a second time

    run_virtually(typed())
    assert len(answers()) == 1


def test_the_same_answer_again_is_no_second_try(asking):
    submit(asking, trap(asking))
    before = words(asking._widget)
    submit(asking, f" {trap(asking)} ")
    reported = words(asking._widget)
    assert "The same answer" in reported and "The same answer" not in before
    assert "A known trap" in reported, "why it is wrong is still there"
    assert asking.question.asked.tries == 1 and not answers()
    submit(asking, right(asking))
    (event,) = answers()
    assert event.detail["rating"] == "hard" and len(event.detail["traps"]) == 1


def test_enter_and_then_the_button_is_one_answer(asking):
    field = entry(asking._widget)

    async def typed():
        field.value = "99"
        pressed_enter(field)
        press(asking._widget, "Submit")
        assert asking.question.asked.tries == 1
        field.value = "98"  # typed at once after it: not to be taken by the first Enter
        await asyncio.sleep(0.3)

    run_virtually(typed())
    assert asking.question.asked.tries == 1 and not answers()
    assert "The same answer again" not in words(asking._widget), "the timer fired all the same"


def test_enter_takes_a_text_that_has_not_changed(asking):
    async def typed():
        field = entry(asking._widget)
        field.value = right(asking)
        assert asking.question.asked.tries == 0  # leaving the field is no answer
        pressed_enter(field)
        await asyncio.sleep(0.3)

    run_virtually(typed())
    assert asking.question.asked.is_right and len(answers()) == 1
