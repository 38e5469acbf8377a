"""Each entry of the glossary has one number, which is proved or has a source, and a notebook."""

import re
from pathlib import Path

import pytest

from labkit.interview.evidence import prove

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ENTRIES = dict(
    re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n?)+)", (NOTEBOOKS / "glossary.md").read_text(), re.M)
)


def test_terms_are_in_order():
    assert list(ENTRIES) == sorted(ENTRIES, key=str.lower) and len(ENTRIES) >= 40


@pytest.mark.parametrize("term", ENTRIES)
def test_a_term_has_one_number_a_proof_of_it_and_a_notebook(term):
    text, basis = ENTRIES[term].strip().split("\n\n")
    (says,) = re.findall(r"\*\*(.+?)\*\*", text, re.S)
    proof, notebook = re.fullmatch(
        r"(?:`(.+)`|\[source\]\(https://.+?\)) · \[notebook .+\]\((.+)\)", basis
    ).groups()
    assert (NOTEBOOKS / notebook).is_file()
    if proof:
        proved = prove(" ".join(says.split()), proof)
        assert proved.holds, proved.reason


def test_links_of_notebooks_to_the_glossary_reach_a_term():
    anchors = {term.lower().replace(" ", "-") for term in ENTRIES}
    for page in NOTEBOOKS.glob("*.ipynb"):
        found = set(re.findall(r"glossary\.md#([^)\s]+)", page.read_text()))
        assert found <= anchors, page.name
