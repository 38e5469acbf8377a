"""The quiz: its choices, what a wrong one does, in a terminal and on a page."""

import re
import sys
from collections import Counter

import pytest

from labkit import cli
from labkit.interview.cards import load_bank
from labkit.interview.cards import sitting as sittings
from labkit.interview.cards.sitting import UnknownCards
from labkit.interview.court import load_claims
from labkit.interview.drills import Drill, Outcome, judge
from labkit.interview.quiz import clock_text, make_quiz, reasons, taken_text
from labkit.notebook import quiz
from labkit.progress import practice
from tests.widget_tree import buttons, press, words

EVERY = make_quiz(1000, seed=2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def test_every_question_has_different_choices_and_a_reason_for_each():
    assert {each.subject.partition("/")[0] for each in EVERY} == {"drill", "claim", "card"}
    assert len({each.subject for each in EVERY}) == len(EVERY) > 150
    for question in EVERY:
        texts = [choice.text for choice in question.choices]
        assert 2 <= len(set(texts)) == len(texts) <= 4, question.subject
        assert all(choice.text and choice.why for choice in question.choices), question.subject


def test_a_choice_is_explained_by_its_own_trap_truth_or_mistake():
    cards = {sittings.subject(card): card for card in load_bank().values()}
    claims, num = load_claims(), Counter()
    for question in EVERY:
        kind, _, name = question.subject.partition("/")
        for place, choice in enumerate(question.choices):
            wrong, right = reasons(question, place)
            assert right == question.choices[question.right].why
            assert (wrong == "") == (place == question.right or kind == "claim")
            if kind == "claim":
                assert choice.why == claims[name].truth
            elif kind == "card" and place != question.right:
                # The choice is what the named card says against the mistake that is quoted.
                said, other = re.fullmatch(
                    r'That answers "(.+)" \(card (.+)\)\.', choice.why
                ).groups()
                text = " ".join(cards[f"card/{other}"].mistake.split())
                assert text.startswith(f'"{said}" ') and choice.text.startswith(
                    text[len(said) + 3 :][:40]
                )
            elif kind == "card":
                assert choice.why == cards[question.subject].minute
            num[kind] += 1
    assert min(num.values()) > 50


def test_a_wrong_number_of_a_drill_is_explained_by_the_trap_that_gives_it(monkeypatch):
    drawn = {}

    def question(drill, seed):
        drawn[drill.subject] = plain(drill, seed)
        return drawn[drill.subject]

    plain = Drill.question
    monkeypatch.setattr(Drill, "question", question)
    asked = [each for each in make_quiz(60, seed=7) if each.subject in drawn]
    for each in asked:
        for place, choice in enumerate(each.choices):
            ruling = judge(drawn[each.subject], choice.text)
            assert (ruling.outcome is Outcome.RIGHT) == (place == each.right), choice
            assert place == each.right or choice.why.startswith(f"{ruling.trap.name}: "), choice
    assert len(asked) >= 15


def test_no_choice_points_to_a_text_that_is_not_on_the_screen():
    pointing = re.compile(
        r"\b(above|below|in the (run|table|example|picture)|this (run|page))\b", re.I
    )
    for question in EVERY:
        if question.subject.startswith("card/"):
            for choice in question.choices:
                assert not pointing.search(choice.text), (question.subject, choice.text)


def test_a_seed_repeats_a_quiz_and_the_right_choice_is_at_any_place():
    assert make_quiz(9, seed=5) == make_quiz(9, seed=5) != make_quiz(9, seed=6)
    assert {each.right for each in EVERY} == {0, 1, 2, 3}


def test_a_quiz_of_a_group_asks_of_that_group_only():
    assert {each.topic.partition("-")[0] for each in make_quiz(9, "pp", seed=1)} == {"pp"}
    with pytest.raises(UnknownCards, match="pipeline"):
        make_quiz(9, "pipelines")


@pytest.mark.parametrize("kind", ["drill", "claim", "card"])
def test_a_wrong_choice_is_asked_again_soon_and_a_right_one_may_be_a_guess(kind):
    question = next(each for each in EVERY if each.subject.startswith(f"{kind}/"))
    assert question.choose(question.right) and practice.state(question.subject) is None
    assert not question.choose((question.right + 1) % len(question.choices))
    state = practice.state(question.subject)
    assert state.num_answers == 1 and state.due_s - state.last_s < 3 * 86_400


def test_a_page_rules_a_choice_once_and_goes_on_to_the_score():
    box = quiz("pp", 2, seed=1)
    page = box._widget
    press(page, "Start")
    question = box.question
    wrong = (question.right + 1) % len(question.choices)
    box.choose(wrong), box.choose(question.right)
    assert box.results == [False] and "Wrong" in words(page)
    press(page, "Next question")
    box.choose(box.question.right)
    press(page, "How many")
    assert "1 of 2 right" in words(page) and buttons(page) == []


def test_a_terminal_takes_a_letter_and_explains(monkeypatch, capsys):
    first, second = make_quiz(2, "co", seed=4)
    wrong = "abcd"[(first.right + 1) % len(first.choices)]
    typed = iter(["z", wrong, "abcd"[second.right]])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    monkeypatch.setattr(sys, "argv", ["labkit", "quiz", "co", "--count", "2", "--seed", "4"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert "'z' is no choice" in out and "Wrong." in out and "1 of 2 right" in out


def test_the_score_says_the_time_that_was_meant():
    assert (clock_text(10, 30.2), clock_text(10, 312)) == ("270 s left", "12 s over")
    assert taken_text([True, False], 10, 252) == "1 of 10 right, 2 answered, in 4:12 of 5:00."
