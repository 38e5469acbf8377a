"""README is right about the notebooks, about updates, and about the place of the progress."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import COPY
from labkit.interview.cards import load_bank
from labkit.interview.drills import DRILLS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
UPDATES = (ROOT / "docs" / "your_work_and_updates.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ROWS = dict(re.findall(r"^\| \[\d\d[a-z]?\]\(notebooks/(.+?)\) \| .+? \| (\d+) \|", README, re.M))


def test_the_table_has_every_notebook():
    assert list(ROWS) == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name[:2])
def test_a_notebook_states_its_minutes_and_readme_repeats_them(path):
    """By words / 60 + lines of code / 7, as everywhere, to a tenth."""
    cells = json.loads(path.read_text())["cells"]
    text = {
        kind: "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
        for kind in ("markdown", "code")
    }
    stated = int(re.match(r"# .+\n\n\*\*(\d+) minutes\b", text["markdown"])[1])
    num_words = len(re.sub(r"```.*?```", "", text["markdown"], flags=re.DOTALL).split())
    num_lines = sum(1 for line in text["code"].splitlines() if line.strip())
    assert stated == pytest.approx(num_words / 60 + num_lines / 7, rel=0.1)
    assert int(ROWS[path.name]) == stated


def test_git_ignores_the_copy_that_an_update_must_not_meet():
    block = re.search(r"^git pull\n.*?^```", README, re.M | re.S)[0]
    assert [line.split("  ")[0].rstrip() for line in block.splitlines()[:-1]] == [
        "git pull",
        "make lab",
    ]
    assert "git pull\nmake lab" in UPDATES
    assert f"/{COPY}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_progress_is_where_the_documents_say(monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for system in (Unix, MacOS):
        folder = system("labkit", appauthor=False).user_data_dir
        shown = f"`~/{Path(folder).relative_to(Path.home())}`"
        assert shown in README and shown in UPDATES


def test_every_picture_says_what_it_shows_and_is_small_enough_to_load():
    pictures = re.findall(r"!\[(.*?)\]\((.+?)\)", README)
    assert pictures[0][1] == "docs/first_minute.webp"
    for words, path in pictures:
        assert len(words.split()) > 15
        assert (ROOT / path).stat().st_size < 3e6
    with Image.open(ROOT / pictures[0][1]) as moving:
        assert moving.n_frames > 10 and moving.info["loop"] == 0


def test_there_is_at_least_as_much_to_practise_as_readme_says():
    (exercises,) = re.findall(r"More than (\d+) exercises", README)
    ((cards, drills),) = re.findall(r"More than (\d+) question cards and (\d+) drills", README)
    assert len(load_catalog()) > int(exercises)
    assert len(load_bank()) > int(cards)
    assert len(DRILLS) > int(drills)


def test_without_a_clone_torch_is_the_version_that_the_lab_is_tested_with():
    (pin,) = re.findall("^torch==.+", (ROOT / "constraints.txt").read_text(), re.M)
    assert f"pip install {pin} --index-url" in (ROOT / "docs" / "commands.md").read_text()


def test_links_lead_to_files_and_headings():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor and found.suffix == ".md":
                headings = re.findall(r"^#+ (.+)$", found.read_text(), re.M)
                slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
                assert anchor in slugs, f"{page.name}: {target}"
