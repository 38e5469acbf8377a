"""The question bank: every topic has a card, nothing is wrong with any, every number is proved."""

from importlib.resources import files

import pytest

from labkit.interview import cards
from labkit.interview.evidence import prove

CARDS, UNREADABLE = cards.read_bank()
PROOFS = [
    pytest.param(item, id=f"{card.id}: {item.says}")
    for card in CARDS
    for item in card.evidence
    if item.proof
]


def test_nothing_is_wrong_with_the_bank():
    assert [str(each) for each in cards.validate()] == []


def test_every_topic_has_a_card():
    assert [each.topic.id for each in cards.coverage(CARDS) if each.is_missing] == []


@pytest.mark.parametrize("item", PROOFS)
def test_evidence_holds(item):
    proved = prove(item.says, item.proof)
    assert proved.holds, proved.reason


def test_every_group_of_topics_proves_something():
    """The parametrised test above would pass over a bank without proofs."""
    by_group = {}
    for each in cards.coverage(CARDS):
        by_group.setdefault(each.topic.group, []).append(each.by_formula + each.by_run)
    assert {group: sum(counts) > 0 for group, counts in by_group.items()} == dict.fromkeys(
        by_group, True
    )


def test_topics_are_those_of_the_lab():
    topics = cards.load_topics()
    assert len(topics) == 77
    assert [each.id for each in topics.values() if each.contradicts] == (
        "co-4 co-8 co-9 me-1 ze-1 ze-4 pp-2 hy-3 ft-2".split()
    )
    assert not UNREADABLE


@pytest.mark.parametrize("name", sorted({topic.file for topic in cards.load_topics().values()}))
def test_prose_is_wrapped_and_no_sum_has_become_a_list(name):
    """Outside of the TOML, whose tables stay on one line, and of Markdown's tables."""
    halves = (files("labkit.interview") / "bank" / f"{name}.md").read_text("utf-8").split("+++\n")
    prose = [line for half in halves[::2] for line in half.splitlines()]
    assert prose
    assert [line for line in prose if len(line) > 100 and not line.startswith("|")] == []
    # A line that begins so, because it was wrapped there, is an item of a list to Markdown.
    assert [line for line in prose if line.lstrip().startswith(("+ ", "= "))] == []


def test_the_bank_is_data_of_the_package():
    """As an installed package reads it."""
    names = {each.name for each in (files("labkit.interview") / "bank").iterdir()}
    assert names == {"topics.toml"} | {f"{topic.file}.md" for topic in cards.load_topics().values()}
