"""Which cards are asked next, how an answer is graded by its points, and `labkit cards`."""

import sys

import pytest

from labkit import cli
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.sitting import (
    UnknownCards,
    cards_of,
    follow_up,
    grade,
    next_cards,
    parse_points,
    rating_of,
    subject,
)
from labkit.progress import clock, practice

DAY_S = 86_400
BANK = load_bank()


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.fixture
def labkit(monkeypatch, capsys):
    """Call `labkit ...` with lines typed: (exit status, stdout, stderr)."""

    def call(*words, typed=()):
        lines = iter(typed)

        def ask(prompt=""):
            print(prompt)
            line = next(lines, None)
            if line is None:
                raise EOFError
            if line is KeyboardInterrupt:
                raise KeyboardInterrupt
            return line

        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr("builtins.input", ask)
        monkeypatch.setattr(sys, "argv", ["labkit", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


@pytest.mark.parametrize("what", ["co-8", "co", "collectives", " CO-8 "])
def test_cards_are_found_by_card_group_and_file(what):
    found = cards_of(what)
    assert BANK["co-8"] in found
    assert (len(found) == 1) == ("8" in what)
    assert {load_topics()[card.topic].subject for card in found} == {"collectives"}


def test_a_second_card_of_a_topic_is_found_by_the_topic():
    assert [card.id for card in cards_of("cp-1")] == ["cp-1", "cp-1b"]
    assert [card.id for card in cards_of("cp-1b")] == ["cp-1b"]


def test_a_name_that_is_none_gets_near_ones():
    with pytest.raises(UnknownCards, match="'pipelines' .*: pipeline"):
        cards_of("pipelines")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("1 3 4", {1, 3, 4}),
        ("1,3", {1, 3}),
        ("2-4", {2, 3, 4}),
        ("all", {1, 2, 3, 4}),
        ("", set()),
        ("none", set()),
        (" 4 ; 4 ", {4}),
    ],
)
def test_points_that_were_said(typed, said):
    assert parse_points(typed, 4) == said


@pytest.mark.parametrize("typed", ["5", "0 1", "1-5", "3-2", "two", "1.5", "-1"])
def test_what_is_no_point_is_refused_with_examples(typed):
    with pytest.raises(ValueError, match="such as 1 3 4"):
        parse_points(typed, 4)


@pytest.mark.parametrize(
    ("said", "of", "rating"),
    [
        (5, 5, "easy"), (4, 5, "good"), (3, 5, "hard"), (1, 5, "again"), (0, 5, "again"),
        (2, 3, "good"), (1, 3, "hard"), (4, 6, "good"), (2, 6, "hard"),
    ],
)  # fmt: skip
def test_the_share_of_the_points_is_the_rating(said, of, rating):
    assert rating_of(said, of) == rating


def test_what_is_due_comes_first_then_new_ones_and_what_is_known_is_left_alone():
    cards = cards_of("pp")
    now_s = clock.now_s()
    for card, days_ago in ((cards[3], 40), (cards[1], 60)):
        practice.answer(subject(card), "good", at_s=now_s - days_ago * DAY_S)
    practice.answer(subject(cards[0]), "easy", at_s=now_s)
    found = next_cards(cards, 10)
    # The longest overdue first: both were due a few days after their answers.
    assert found[:2] == [cards[1], cards[3]]
    assert cards[0] not in found
    new = found[2:]
    assert {card.id for card in new} == {c.id for c in cards} - {cards[n].id for n in (0, 1, 3)}
    assert [card.difficulty for card in new] == sorted(card.difficulty for card in new)
    assert next_cards(cards, 1) == found[:1]


@pytest.mark.parametrize(("num_said", "place"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_the_more_was_said_the_later_a_follow_up_of_the_chain_comes(num_said, place):
    card = BANK["rl-1"]
    assert len(card.rubric) == 5 and len(card.follow_ups) == 3
    found = follow_up(card, range(1, 1 + num_said))
    assert (found.id, found.prompt) == (f"rl-1/{place}", card.follow_ups[place - 1].question)
    assert (found.topic, found.place) == (card.topic, card.place)
    assert follow_up(found, {1}) is None, "a follow-up has none"


def test_a_follow_up_comes_back_when_it_is_due_and_never_before_its_card():
    card = BANK["rl-1"]
    assert next_cards([card], 9) == [card]
    for each in (card, card.chain[1]):
        practice.answer(subject(each), "good", at_s=clock.now_s() - 60 * DAY_S)
    assert next_cards([card], 9) == [card, card.chain[1]]
    assert cards_of("rl-1/2") == [card.chain[1]]


def test_a_grade_is_remembered_with_the_points_that_were_missed():
    card = BANK["co-8"]
    assert grade(card, {1}) == rating_of(1, len(card.rubric))
    (event,) = [each for each in _answers() if each.subject == "card/co-8"]
    assert event.detail["missed"] == list(card.rubric[1:])
    assert event.detail["topic"] == "co-8"


def _answers():
    from labkit.progress import events

    return events(kind="answer")


def test_a_card_in_a_terminal_is_asked_shown_and_graded(labkit):
    card = BANK["co-8"]
    status, out, err = labkit("cards", "co-8", typed=["", "m", "d", "f", "seven", "all"])
    assert (status, err) == (0, "")
    flat = " ".join(out.split())
    assert card.prompt in flat and card.rubric[0] in flat
    assert "'seven'" in flat
    assert "Rated easy; back in" in flat and "1 answer: 1 easy" in flat
    assert practice.state("card/co-8").num_answers == 1
    # Known now, and not due.
    status, out, _ = labkit("cards", "co-8")
    assert status == 0 and "Nothing is due" in out and "The next in" in out


def test_who_did_not_know_is_shown_where_to_look(labkit):
    _, out, _ = labkit("cards", "co-8", typed=["", "none"])
    assert "Rated again" in out and "notebooks/02_all_reduce_inside_out.ipynb" in out


@pytest.mark.parametrize(("last", "status"), [(None, 0), (KeyboardInterrupt, 130)])
def test_a_sitting_may_end_at_any_time_and_keeps_what_was_graded(labkit, last, status):
    typed = ["", "all", "", *([] if last is None else [last])]
    code, out, err = labkit("cards", "pp", "--count", "3", typed=typed)
    assert (code, err) == (status, "") and "1 answer: 1 easy" in out
    assert len(_answers()) == 1


def test_cards_are_chosen_by_role_kind_and_level(labkit):
    chosen = [
        card
        for card in BANK.values()
        if "infrastructure" in card.roles and card.kind == "debugging" and card.difficulty == 3
    ]
    words = ("--role", "infrastructure", "--kind", "debugging", "--level", "expert", "--list")
    status, out, _ = labkit("cards", *words)
    assert status == 0 and f"{len(chosen)} cards" in out
    status, _, err = labkit("cards", "--role", "boss")
    assert status == 2 and "ml, infrastructure, research" in " ".join(err.split())


def test_the_list_has_every_card_and_when_it_was_last_asked(labkit):
    grade(BANK["co-8"], {1})
    status, out, _ = labkit("cards", "co", "--list")
    assert status == 0 and f"{sum(name.startswith('co-') for name in BANK)} cards" in out
    (row,) = [line for line in out.splitlines() if line.split()[:1] == ["co-8"]]
    assert str(clock.day_of(clock.now_s())) in row
