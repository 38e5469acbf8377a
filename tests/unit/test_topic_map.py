"""The map of topics: as fresh as what it is made of, complete, and every link leads somewhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from labkit.grade.catalog import load_catalog
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.card import anchor
from labkit.interview.drills import DRILLS
from scripts import topic_map

PAGE = topic_map.NOTEBOOKS / "README.md"
NOTEBOOKS = topic_map.read_notebooks()
LINKS = sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))))


def test_the_page_is_what_its_sources_say():
    fresh = PAGE.read_text(encoding="utf-8") == topic_map.topic_map()
    assert fresh, "run: python -m scripts.topic_map > notebooks/README.md"


def test_nothing_is_left_out():
    page = PAGE.read_text(encoding="utf-8")
    names = [*load_bank(), *DRILLS, *load_catalog()]
    assert [name for name in names if f"`{name}`" not in page] == []
    assert [name for name in NOTEBOOKS if f"({name}.ipynb)" not in page] == []
    assert [each.id for each in load_topics().values() if f"| {each.title} |" not in page] == []


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_somewhere(link):
    target, _, fragment = link.partition("#")
    assert not target or (PAGE.parent / target).is_file(), link
    if target.endswith(".ipynb") and fragment:
        headings = NOTEBOOKS[Path(target).stem].headings
        assert unquote(fragment) in {heading.replace(" ", "-") for heading in headings}
    elif fragment:
        headings = re.findall(r"^#+ (.+)", PAGE.read_text(encoding="utf-8"), re.M)
        assert fragment in {heading.lower().replace(" ", "-") for heading in headings}


def test_a_section_has_one_place_to_which_the_link_leads():
    for topic in load_topics().values():
        if topic.notebook:
            headings = NOTEBOOKS[topic.notebook].headings
            assert headings.count(topic.section) == 1, f"{topic.id}: {topic.section!r}"
        else:
            assert not topic.section, f"{topic.id} has a section and no notebook"


def test_a_notebook_without_its_sentence_is_refused():
    with pytest.raises(SystemExit, match="has no 01_ranks_and_collectives"):
        list(topic_map._in_order(NOTEBOOKS, {"00_start_here": "what is sent"}))


def test_a_path_links_its_notebooks():
    steps = [{"why": "Begin", "notebooks": ["00"]}]
    lines = list(topic_map._paths(NOTEBOOKS, [{"title": "A", "for": "you.", "steps": steps}]))
    assert lines[1:] == [
        "1. Begin: [00 Start here: four processes, one model](00_start_here.ipynb)."
    ]


def test_a_path_to_a_notebook_that_is_not_there_is_refused():
    steps = [{"why": "Begin", "notebooks": ["00", "99"]}]
    with pytest.raises(SystemExit, match=r"path 'A' names \['99'\]"):
        list(topic_map._paths(NOTEBOOKS, [{"title": "A", "for": "you.", "steps": steps}]))


def test_an_anchor_is_a_heading_in_a_link():
    assert anchor("Column, then row") == "Column,-then-row"
    assert anchor("Hidden (or not)") == "Hidden-%28or-not%29"
