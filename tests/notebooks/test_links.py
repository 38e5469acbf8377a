"""Every link of a page to a file of the course leads to a file, and to a heading in it.

Links are in the text of a page, and in the HTML that its cells have shown.
"""

import json
import re
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGES = sorted(NOTEBOOKS.glob("*.ipynb"))
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
_SHOWN_LINK = re.compile(r"<a\s[^>]*?href=\"(?!https?:)([^\"]+)\"")
_HEADING = re.compile(r"^#{1,4} +(.+?) *$", re.M)


@cache
def text_of(path):
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def shown_links(cells):
    """Links in the stored HTML of cells' outputs."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pages = ["".join(output.get("data", {}).get("text/html", [])) for output in outputs]
    return [unescape(link) for page in pages for link in _SHOWN_LINK.findall(page)]


def is_dead(page, link):
    name, _, fragment = link.partition("#")
    target = (page.parent / name) if name else page
    if not fragment or not target.exists():
        return not target.exists()
    headings = "\n".join(_HEADING.findall(text_of(target))).replace(" ", "-")
    if target.suffix == ".md":  # GitHub lowers letters and drops marks, Jupyter keeps them
        headings = re.sub(r"[^\w\n-]", "", headings.lower())
    return unquote(fragment) not in headings.split("\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_leads_to_a_file_and_to_a_heading_in_it(page):
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    links = _LINK.findall(text_of(page)) + shown_links(cells)
    assert [link for link in dict.fromkeys(links) if is_dead(page, link)] == []


def test_a_dead_link_is_found():
    page = PAGES[0]
    assert is_dead(page, "99_no_page.ipynb") and is_dead(page, "glossary.md#no-term")
    assert not is_dead(page, "glossary.md#all-reduce")


def test_a_link_in_stored_html_is_found():
    html = [
        "<p><a class='x' ",
        'href="99_no_page.ipynb#Why-a&amp;b">99</a> <a href="https://x.org">x</a>',
    ]
    shown = {"outputs": [{"data": {"text/html": html}}, {"text": ["a"]}]}
    assert shown_links([shown, {"source": []}]) == ["99_no_page.ipynb#Why-a&b"]
