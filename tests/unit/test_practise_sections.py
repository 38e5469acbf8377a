"""Where a notebook says what to practise: all cards, drills and exercises of it, by name."""

import json
import re

import pytest

from labkit.grade.catalog import load_catalog
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.sitting import cards_of
from labkit.interview.court import load_claims
from labkit.interview.drills import DRILLS, get_drill
from scripts.topic_map import NOTEBOOKS

COURT = "34_claims_court"
PAGES = {card.id: load_topics()[card.topic].notebook for card in load_bank().values()}
WITH_CARDS = sorted({*PAGES.values()} - {""})
_CALL = re.compile(r'`(?:labkit (cards|drill|check|reset) (\w[\w-]*)|(card|drill)\("([\w-]+)"\))`')


def text_of(notebook):
    """Return the text of a page, without its code."""
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return "\n\n".join(texts)


def section(notebook):
    """Return the text between "Practise it." and the next heading."""
    found = re.findall(r"^\*\*Practise it\.\*\*.*?(?=^#|\Z)", text_of(notebook), re.M | re.S)
    assert len(found) == 1, f'{notebook}: write one paragraph "**Practise it.**" under "## Say it"'
    return found[0]


def names(notebook):
    """The plain names in it, commands and calls aside."""
    return re.findall(r"`([\w-]+)`", section(notebook))


@pytest.mark.parametrize("notebook", WITH_CARDS)
def test_a_notebook_names_what_there_is_to_practise(notebook):
    cards = {card for card, page in PAGES.items() if page == notebook}
    drills = {drill.name for drill in DRILLS.values() if drill.notebook == notebook}
    exercises = {each.name for each in load_catalog().values() if each.notebook == notebook}
    named = names(notebook)
    assert {name for name in named if name in load_bank()} == cards
    assert drills - set(named) == set()
    linked = set(re.findall(r"\]\(\.\./exercises/(\w+)\.py\)", text_of(notebook)))
    assert exercises <= linked


def test_the_court_names_the_cards_on_what_it_tries():
    topics = {topic for claim in load_claims().values() for topic in claim.topics}
    cards = {card.id for card in load_bank().values() if card.topic in topics}
    assert {name for name in names(COURT) if name in load_bank()} == cards


@pytest.mark.parametrize("notebook", [*WITH_CARDS, COURT])
def test_every_name_and_command_is_right(notebook):
    known = {*load_bank(), *DRILLS, *load_catalog()}
    assert [name for name in names(notebook) if name not in known] == []
    calls = _CALL.findall(section(notebook))
    assert len(calls) >= 2
    for command, name, function, argument in calls:
        if (command or function) in ("cards", "card"):
            assert cards_of(name or argument)[0].id == (name or argument)
        elif (command or function) == "drill":
            get_drill(name or argument)
        else:
            assert name in load_catalog()


@pytest.mark.parametrize("notebook", [*WITH_CARDS, COURT])
def test_it_links_to_its_place_on_the_map(notebook):
    groups = {topic.group for topic in load_topics().values()}
    anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in groups}
    (anchor,) = re.findall(r"\(README\.md#([\w-]+)\)", section(notebook))
    assert anchor in anchors | {"by-topic"}
