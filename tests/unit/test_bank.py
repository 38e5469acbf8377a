"""The question bank: every topic has a card, nothing is wrong with any, every number is proved."""

import dataclasses

import pytest
import typer

from labkit import calc
from labkit.cli.bank import bank
from labkit.course.collectives import evidence as collectives
from labkit.grade.catalog import load_catalog, load_subjects
from labkit.interview import cards
from labkit.interview.court import Evidence, load_claims
from labkit.interview.evidence import prove, uses
from tests.bank_faults import card_faults
from tests.warm_ranks import runs_on_warm_ranks  # noqa: F401

CARDS, UNREADABLE = cards.read_bank()
RUNS = {card.id: [e for e in card.all_evidence if uses(e.proof or "0", "runs")] for card in CARDS}


def test_nothing_is_wrong_with_the_bank():
    assert not UNREADABLE
    assert {card.id: faults for card in CARDS if (faults := card_faults(card))} == {}
    ids = [card.id for card in CARDS]
    assert len(set(ids)) == len(ids)
    assert all(card.topic in ids for card in CARDS)  # the first card has no letter


def test_every_follow_up_has_an_answer_and_every_topic_a_chain_of_four():
    bare = [
        (card.id, each.question)
        for card in CARDS
        for each in card.follow_ups
        if not (each.answer and each.kind)
    ]
    assert bare == []
    kinds = {(card.topic, each.kind) for card in CARDS for each in card.follow_ups}
    chain = ("apply", "analyse", "design")  # after the card, which asks to recall
    missing = {(topic, kind) for topic in cards.load_topics() for kind in chain} - kinds
    assert missing == set()


def test_exercises_of_cards_exist():
    assert {card.exercise for card in CARDS} <= {"", *load_catalog()}


def test_every_topic_has_a_card():
    with_card = {card.topic for card in CARDS}
    assert [each for each in cards.load_topics() if each not in with_card] == []


def test_the_command_counts_cards_and_evidence_and_lists_missing_topics(capsys, monkeypatch):
    with monkeypatch.context() as patched:
        without = [card for card in CARDS if card.topic != "ec-6"]
        patched.setattr(cards, "read_bank", lambda: (without, []))
        bank(only="ec-")
    assert "missing: ec-6\n" in capsys.readouterr().out
    bank(only="co-8")
    (card,) = [card for card in CARDS if card.topic == "co-8"]
    proofs, by_run = sum(bool(item.proof) for item in card.all_evidence), len(RUNS["co-8"])
    said = f"1 of 1 topics: 1 cards, {proofs - by_run} formula, {by_run} run, "
    assert said in capsys.readouterr().out


def test_the_command_finds_a_topics_second_card_by_its_id(capsys):
    bank(only="ec-6b")
    assert "1 of 1 topics: 1 cards, " in capsys.readouterr().out


def test_the_command_fails_for_a_card_that_cannot_be_read(monkeypatch):
    problem = cards.Problem("collectives.md", 1, "co-2", "there is no prompt", "write it")
    monkeypatch.setattr(cards, "read_bank", lambda: (CARDS, [problem]))
    with pytest.raises(typer.Exit) as end:
        bank(only="co-")
    assert end.value.exit_code == 1


def test_the_command_fails_for_a_number_that_is_not_proved(monkeypatch):
    wrong = cards.Evidence(says="7", proof="calc.collective('all_reduce', 'ring', 4).steps")
    card = next(card for card in CARDS if card.id == "co-2")
    unproved = dataclasses.replace(card, evidence=(wrong,))
    monkeypatch.setattr(cards, "read_bank", lambda: ([unproved], []))
    with pytest.raises(typer.Exit) as end:
        bank(run=True, only="co-2")
    assert end.value.exit_code == 1


def test_what_is_pending_is_listed_for_cards_and_for_the_court(monkeypatch, capsys):
    """A claim is named by its key, and chosen by its topics."""
    bank(pending=True)
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing is pending."
    claim = load_claims()["ring-8"]
    waiting = dataclasses.replace(claim, evidence=(Evidence(pending="a switch that adds"),))
    monkeypatch.setattr("labkit.cli.bank.load_claims", lambda: {"ring-8": waiting})
    bank(pending=True, only="co-2")
    assert capsys.readouterr().out.split() == "ring-8 a switch that adds 1 pending".split()
    bank(pending=True, only="me-")
    assert capsys.readouterr().out == "Nothing is pending.\n"


def failing(items):
    proved = {item.says: prove(item.says, item.proof) for item in items}
    return {says: each.reason for says, each in proved.items() if not each.holds}


def test_every_number_that_a_formula_proves_holds():
    by_formula = [
        item
        for card in CARDS
        for item in card.all_evidence
        if item.proof and item not in RUNS[card.id]
    ]
    assert len(by_formula) > 500
    assert failing(by_formula) == {}


@pytest.mark.parametrize("card", [card for card, items in RUNS.items() if items])
def test_every_number_that_a_run_proves_holds(card):
    assert failing(RUNS[card]) == {}


@pytest.mark.parametrize("num_bytes", [8_000, 2_000_000])
def test_times_on_slow_links_are_those_of_calc(num_bytes):
    for name in ("ring", "halving_doubling", "tree"):
        of_calc = calc.collective("all_reduce", name, 4, num_bytes).seconds(20e-3, 1 / 10e6)
        found = collectives.seconds_on_slow_links(name, 4, num_bytes)
        assert found == pytest.approx(of_calc, rel=1e-9), name


def test_every_group_of_topics_proves_something():
    """The parametrised test above would pass over a bank without proofs."""
    topics = cards.load_topics()
    proving = {topics[c.topic].group for c in CARDS if any(item.proof for item in c.evidence)}
    assert proving == {each.group for each in topics.values()}


def test_topics_are_those_of_the_lab():
    topics = cards.load_topics()
    assert len(topics) == 93
    assert [each.id for each in topics.values() if each.contradicts] == (
        "co-4 co-8 co-9 me-1 ze-1 ze-4 pp-2 hy-3 ft-2".split()
    )


def test_prose_is_wrapped_and_no_sum_has_become_a_list():
    """In the package's data; outside of the TOML and of Markdown's tables."""
    for name, subject in load_subjects().items():
        halves = (subject.folder / "cards.md").read_text("utf-8").split("+++\n")
        prose = [line for half in halves[::2] for line in half.splitlines()]
        assert [line for line in prose if len(line) > 100 and not line.startswith("|")] == [], name
        # A line that begins so, because it was wrapped there, is an item of a list to Markdown.
        assert [line for line in prose if line.lstrip().startswith(("+ ", "= "))] == [], name
