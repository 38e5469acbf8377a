"""README is right about the notebooks, about updates, and about the place of the progress."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
UPDATES = (ROOT / "docs" / "your_work_and_updates.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ROWS = dict(re.findall(r"^\| \[\d\d\]\(notebooks/(.+?)\) \| .+? \| (\d+) \|", README, re.M))


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


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Runs git in a folder of tmp_path, with no settings but an author's name."""
    (tmp_path / "config").write_text("[user]\nname = A\nemail = a@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")

    def git(folder, *arguments):
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=tmp_path / folder, capture_output=True, text=True)
        return done.returncode

    return git


def test_the_update_keeps_answers_and_takes_what_is_new(tmp_path, git):
    block = re.search(r"^git stash .*?^```", README, re.M | re.S)[0]
    assert block.removesuffix("```") in UPDATES
    commands = [re.split(r" +# ", line)[0] for line in block.splitlines()[:-1]]

    upstream, mine = tmp_path / "upstream", tmp_path / "mine"
    stub, page = "exercises/sums.py", "notebooks/00.ipynb"
    lines = ['"""Add."""', "", "import torch", "", "", "def sums(x):", "    raise TODO", ""]
    for name, text in ((stub, "\n".join(lines)), (page, '{"output": null}\n')):
        (upstream / name).parent.mkdir(parents=True, exist_ok=True)
        (upstream / name).write_text(text)
    git("upstream", "init", "-q")
    git("upstream", "add", ".")
    git("upstream", "commit", "-qm", "first")
    git("", "clone", "-q", "upstream", "mine")

    (mine / stub).write_text("\n".join([*lines[:-2], "    return x.sum()", ""]))
    (mine / page).write_text('{"output": 5}\n')
    lines[0], lines[-2] = '"""Add all."""', "    raise AnotherTODO"
    (upstream / stub).write_text("\n".join(lines))
    (upstream / page).write_text('{"output": null, "new": 1}\n')
    git("upstream", "commit", "-qam", "second")
    assert git("mine", "pull", "--no-rebase") != 0  # why there is a recipe

    for command in commands:
        subprocess.run(command, shell=True, cwd=mine, check=True, capture_output=True)
    lines[-2] = "    return x.sum()"
    assert (mine / stub).read_text() == "\n".join(lines)
    assert (mine / page).read_text() == (upstream / page).read_text()
    assert git("mine", "diff", "--quiet") == 0


def test_progress_is_where_the_documents_say(monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for system in (Unix, MacOS):
        folder = system("labkit", appauthor=False).user_data_dir
        shown = f"`~/{Path(folder).relative_to(Path.home())}`"
        assert shown in README and shown in UPDATES
