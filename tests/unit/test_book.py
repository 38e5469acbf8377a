"""The website's pages before Sphinx reads them, and the check of the built site."""

import json
import re

import pytest

from book import check
from book.links import ROOT, DeadLink, Links, page_of, slug
from book.notebook import in_the_lab, literal_calls
from book.practice import plain
from book.stage import stage
from labkit.grade.catalog import load_catalog
from labkit.interview.cards import load_bank
from labkit.interview.court import load_claims


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book") / "stage"
    stage(folder)
    return folder


def outputs(staged, name):
    """All HTML that the staged notebook shows, and the source of its cells."""
    cells = json.loads((staged / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    found = [
        o["data"].get("text/html", "") for c in cells for o in c.get("outputs", ()) if "data" in o
    ]
    return "".join(map("".join, found)), "".join("".join(c["source"]) for c in cells)


def test_every_notebook_card_claim_and_exercise_has_its_page(staged):
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert (staged / "notebooks" / path.name).is_file()
    for name in load_bank():
        assert f"card('{name}')" in (staged / "cards" / f"{name}.md").read_text().replace(
            "&#x27;", "'"
        )
    claims = "".join(path.read_text() for path in (staged / "claims").glob("*.md"))
    assert all(f"vote(&#x27;{key}&#x27;)" in claims for key in load_claims())
    assert {path.stem for path in (staged / "exercises").glob("*.md")} == {*load_catalog(), "index"}


def test_no_page_of_an_exercise_has_a_line_of_the_answer(staged):
    marked = re.compile(r"### BEGIN SOLUTION\n(.*?)### (?:INSTEAD|END SOLUTION)", re.DOTALL)
    for name in load_catalog():
        page = (staged / "exercises" / f"{name}.md").read_text()
        for answer in marked.findall((ROOT / "solutions" / f"{name}.py").read_text()):
            assert answer.strip() not in page, name
        assert "SOLUTION" not in page


def test_no_stored_output_asks_the_reader_to_run_a_cell(staged):
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        html, _ = outputs(staged, path.stem)
        assert "Run this cell" not in html, path.name


def test_a_cell_that_can_run_in_the_page_is_marked_with_its_call(staged):
    html, _ = outputs(staged, "35_mock_interview")
    assert '<div class="lab-live" data-call="card(&#x27;co-8&#x27;)">' in html
    assert 'data-call="dashboard()" data-progress>' in html, "progress goes to a file from there"


def test_the_cards_to_practise_after_a_notebook_are_links(staged):
    page = json.loads((staged / "notebooks" / "01_ranks_and_collectives.ipynb").read_text())
    (text,) = [
        "".join(c["source"]) for c in page["cells"] if "**Practise it.**" in "".join(c["source"])
    ]
    assert "[co-2](../cards/co-2.md) the ring" in text and "`labkit cards co-2`" in text


def test_a_moving_picture_keeps_its_data(staged):
    html, _ = outputs(staged, "02_all_reduce_inside_out")
    data = re.search('data-picture="ring"><script type="application/json">(.*?)</script>', html)
    assert len(json.loads(data[1])["steps"]) == 7
    assert (staged / "static" / "live" / "moving" / "ring.mjs").is_file()


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("x = 1\ncard('co-8')", ["card('co-8')"]),
        ("memory_calculator()", ["memory_calculator()"]),
        ("drill('ring_seconds', seed=-1)", ["drill('ring_seconds', seed=-1)"]),
        ("display(vote('a'), picture, vote('b'))", ["vote('a')", "", "vote('b')"]),
        ("dashboard(standing)", [""]),
        ("x.show()", [""]),
        ("x = card('co-8')", []),
        ("%%ranks 2\nx", []),
        ("", []),
    ],
)
def test_a_call_is_live_if_its_arguments_are_literals(source, calls):
    assert literal_calls(source) == calls


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (
            "<span>Run this cell to commit to a number.</span>",
            "In the lab you commit to a number here.",
        ),
        ("<span>Run this cell to be asked.</span>", "In the lab you are asked here."),
        (
            "<span>Run this cell to vote: right / wrong</span>",
            "In the lab you vote here: right / wrong.",
        ),
        (
            "<span>Run this cell, and the picture moves: Space.</span>",
            "In the lab this picture moves.",
        ),
        ("10 minutes<br><span>Run this cell to see how far you are.</span>", "10 minutes"),
    ],
)
def test_a_page_says_what_the_lab_does(stored, said):
    assert re.sub("<.*?>", "", in_the_lab(stored)) == said


def test_links_lead_to_pages_and_a_missing_file_is_an_error():
    links = Links()
    text = (
        "[a](../exercises/ring_all_reduce.py), "
        "[b](02_all_reduce_inside_out.ipynb#What-no-algorithm-can-beat), `[c](no.py)`, "
        "[d](https://example.org/x), [e](../labkit/collectives/ring.py)"
    )
    assert links.in_markdown("notebooks/01_ranks_and_collectives.ipynb", text) == (
        "[a](../exercises/ring_all_reduce.md), "
        "[b](02_all_reduce_inside_out.ipynb#what-no-algorithm-can-beat), `[c](no.py)`, "
        "[d](https://example.org/x), [e](../code/labkit/collectives/ring.py.md)"
    )
    html = '<a class="x" href="../exercises/ring_all_reduce.py">'
    assert links.in_html("notebooks/01.ipynb", html).endswith(
        'href="../exercises/ring_all_reduce.html">'
    )
    assert "labkit/collectives/ring.py" in links.wanted
    with pytest.raises(DeadLink, match="links to nowhere.py: there is no docs/nowhere.py"):
        links.in_markdown("docs/a.md", "[x](nowhere.py)")
    assert page_of("solutions/ring_all_reduce.py") == "exercises/ring_all_reduce.md"


def test_an_anchor_is_githubs_and_plain_text_stays_plain():
    assert slug("The ring, by hand") == slug("The-ring,-by-hand") == "the-ring-by-hand"
    assert plain("n * m < k costs $3, says `a*b`") == r"n \* m \< k costs \$3, says `a*b`"


GOOD = '<h1 id="a">A</h1><a href="#a">a</a><a href="https://arxiv.org/abs/1">b</a>'
GOOD += '<img src="p.png" alt="p">'


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        (GOOD, None),
        ('<a href="gone.html">x</a>', "there is no gone.html"),
        ('<a href="#gone">x</a>', "has no place gone"),
        ('<img src="p.png" alt=" ">', "no alt text"),
        ('<img src="q.png" alt="q">', "there is no q.png"),
        ('<script src="https://example.org/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "from another host"),
    ],
)
def test_the_check_finds_each_fault(tmp_path, html, fault):
    (tmp_path / "page.html").write_text(html)
    (tmp_path / "p.png").touch()
    found = list(check.faults(tmp_path))
    assert len(found) == bool(fault)
    assert not fault or fault in found[0]


def test_a_notebook_that_is_too_heavy_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "MOST_BYTES", 1000)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "x.css").write_text(" ".join(map(str, range(1000))))
    (tmp_path / "notebooks" / "a.html").write_text('<link rel="stylesheet" href="../x.css?v=1">')
    assert "a first visit takes" in "".join(check.faults(tmp_path))
