"""After `pip install labkit` every command runs outside a clone, or names what it needs.

A wheel is built from a source distribution, and unpacked as pip would do it: its files, on the
path. Extras that are not installed are hidden.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from labkit.cli import EXTRAS, lab
from labkit.grade.catalog import load_catalog
from labkit.grade.stubs import stub_of
from labkit.grade.workspace import Workspace

ROOT = Path(__file__).parents[2]
EASY = "model_state_bytes"
# Several calls in one process; what each printed, and whether torch was imported by then.
CALLS = """
import contextlib, io, json, sys
from labkit import cli

done = []
for words in json.loads(sys.argv[1]):
    sys.argv, out, err, status = ["labkit", *words], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
    done.append([status, out.getvalue(), err.getvalue(), "torch" in sys.modules])
print(json.dumps(done))
"""
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package, as pip installs it."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    clone.mkdir()
    for name in ("labkit", "exercises", "solutions", "notebooks", "docs", "labextension"):
        ignored = shutil.ignore_patterns("__pycache__", "backups", ".ipynb_checkpoints")
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "AGENTS.md"):
        shutil.copy(ROOT / name, clone)
    shutil.unpack_archive(_built("sdist", clone, folder), folder / "source")
    (source,) = (folder / "source").iterdir()
    with zipfile.ZipFile(_built("wheel", source, folder)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_jupyterlab_finds_the_stylesheet_after_any_install(site, tmp_path):
    (data,) = site.glob("labkit-*.data/data")
    clone = site.parent / "clone"
    with zipfile.ZipFile(_built("editable", clone, tmp_path)) as archive:
        in_editable = [name.split(".data/data/")[-1] for name in archive.namelist()]
    for file in sorted(path for path in (ROOT / "labextension").rglob("*") if path.is_file()):
        place = f"share/jupyter/labextensions/labkit/{file.relative_to(ROOT / 'labextension')}"
        assert (data / place).read_bytes() == file.read_bytes()
        assert place in in_editable


def test_the_settings_of_jupyterlab_are_installed(site):
    place = lab.SETTINGS.relative_to(ROOT)
    for file in (path for path in (ROOT / place).rglob("*") if path.is_file()):
        assert (site / file.relative_to(ROOT)).read_bytes() == file.read_bytes()


def _built(kind, source, folder):
    program = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return built


@pytest.fixture
def installed(site, tmp_path):
    """`python ...` outside a clone, with the package installed."""

    def call(*words, hidden=(), cwd=tmp_path):
        hiding = tmp_path / "hiding"
        hiding.mkdir(exist_ok=True)
        (hiding / "sitecustomize.py").write_text(HIDE.format(names=set(hidden)))
        env = {
            **os.environ,
            "PYTHONPATH": f"{hiding}:{site}",
            "HOME": str(tmp_path),
            "LABKIT_HOME": str(tmp_path / "progress"),
            "COLUMNS": "100",
        }
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return call


def outcomes(result):
    """(status, stdout and stderr, whether torch was imported) of each call."""
    assert result.returncode == 0, result.stderr
    return [
        (status, " ".join(f"{out} {err}".split()), has_torch)
        for status, out, err, has_torch in json.loads(result.stdout)
    ]


MAKE_ONE = "labkit start"
# Commands that launch nothing: status, and a part of what is printed.
QUICK = [
    ("--version", 0, importlib.metadata.version("labkit")),
    ("--help", 0, "Interview practice"),
    ("chek", 2, "'check'"),
    ("list", 0, MAKE_ONE),
    (f"hint {EASY}", 0, "hint 1 of 3"),
    (f"hint {EASY}x", 2, EASY),
    (f"solution {EASY} --yes", 0, f"def {EASY}"),
    (f"reset {EASY}", 2, MAKE_ONE),
    ("watch", 2, MAKE_ONE),
    ("cards --list", 0, "cards"),
    ("cards", 0, "Card 1 of 5"),
    ("drill --list", 0, "drills"),
    ("drill", 0, "Question 1 of 5"),
    ("progress", 0, MAKE_ONE),
    ("export --json all.json", 0, "in all.json"),
    ("export --anki all.txt", 0, "in all.txt"),
    ("import all.json", 0, "0 events added"),
    ("mock --minutes 6", 0, "ended here"),
    ("mock --minutes 45", 0, MAKE_ONE),
    ("plan --model llama3-8b --cluster h100 --gpus 64 --top 1", 0, "Why others lost"),
    ("bank --only co-1", 0, "topics:"),
    ("new exercise mine --subject zero", 2, "no clone"),
    ("update", 2, MAKE_ONE),
    ("start lab", 0, "files written into lab"),
    ("start lab", 2, "labkit update lab"),
    ("update lab", 0, "Nothing is new"),
    ("lab --no-browser", 2, "No such option"),
    ("web", 2, "make book"),
    ("lab -- --no-browser", 2, "labkit lab my-lab -- --no-browser"),
    (f"start {ROOT / 'docs'}", 2, "name a new folder"),
]


def test_outside_a_clone_commands_work_or_say_how_to_make_the_folder(installed, tmp_path):
    calls = [words.split() for words, _, _ in QUICK]
    found = outcomes(installed("-c", CALLS, json.dumps(calls)))
    for (words, status, part), (its_status, text, has_torch) in zip(QUICK, found, strict=True):
        assert (its_status, part in text) == (status, True), (words, text)
        assert not has_torch, f"labkit {words} imports torch"
        assert "Traceback" not in text
    own, clone = Workspace(tmp_path / "lab"), Workspace(ROOT)
    for name in load_catalog():
        assert own.solution(name).read_bytes() == clone.solution(name).read_bytes()
        assert own.exercise(name).read_text() == stub_of(name, clone)
    for file in ("notebooks/00_start_here.ipynb", "labkit/model.py", "docs/layout.md"):
        assert (tmp_path / "lab" / file).is_file()


def test_what_launches_ranks_works_too(installed, tmp_path, site):
    trace = next((site / "labkit" / "profile" / "traces").glob("*.json.gz"))
    calls = [
        ("start lab", 0, "written"),
        (f"check {EASY}", 2, MAKE_ONE),
        ("check", 2, MAKE_ONE),
        (f"check {EASY} --file lab/solutions/{EASY}.py", 0, "passed"),
        (f"check {EASY} --file lab/exercises/{EASY}.py", 1, "not attempted"),
        ("puzzle", 0, "two ranks"),
        ("puzzle two ranks", 0, "Microbatches"),
        (f"profile {trace}", 0, "Milliseconds of a step"),
        ("serve lab", 2, "lab"),
        ("preflight --ranks 2 --burn-in 0", None, "ready"),
        ("doctor", None, "a run of 2 ranks"),
    ]
    found = outcomes(installed("-c", CALLS, json.dumps([words.split() for words, _, _ in calls])))
    for (words, status, part), (its_status, text, _) in zip(calls, found, strict=True):
        assert status in (its_status, None) and part in text, (words, text)
        assert "Traceback" not in text, words


def test_in_the_folder_of_the_course_a_solution_passes_and_the_stub_comes_back(installed, tmp_path):
    assert installed("-m", "labkit.cli", "start", "lab").returncode == 0
    own = Workspace(tmp_path / "lab")
    stub = own.exercise(EASY).read_bytes()
    shutil.copy(own.solution(EASY), own.exercise(EASY))
    calls = [["update"], ["check", EASY], ["reset", EASY], ["list"]]
    again, checked, reset, listed = outcomes(
        installed("-c", CALLS, json.dumps(calls), cwd=own.root)
    )
    assert again[0] == 0 and "Nothing is new" in again[1]
    assert checked[0] == 0 and f"{EASY}: passed" in checked[1]
    assert reset[0] == 0 and own.exercise(EASY).read_bytes() == stub
    assert "1 of " in listed[1] and MAKE_ONE not in listed[1]


def test_without_an_extra_one_line_says_how_to_install_it(installed):
    bare = installed("-m", "labkit.cli", "list", hidden=EXTRAS)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert len(bare.stderr.splitlines()) == 1 and "pip install 'labkit[lab]'" in bare.stderr
    no_lab = installed("-m", "labkit.cli", "lab", hidden=["jupyterlab"])
    assert (no_lab.returncode, no_lab.stdout) == (2, "")
    assert "pip install 'labkit[lab]'" in no_lab.stderr
    of_serve = [name for name, extra in EXTRAS.items() if extra == "serve"]
    without = installed("-m", "labkit.cli", "serve", ".", hidden=of_serve)
    assert (without.returncode, without.stdout) == (2, "")
    assert len(without.stderr.splitlines()) == 1 and "pip install 'labkit[serve]'" in without.stderr


def test_every_package_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    modules = importlib.metadata.packages_distributions()
    for extra in ("lab", "serve"):
        for requirement in extras[extra]:
            name = requirement.split(">")[0].split("<")[0].strip()
            of_it = {m for m, owners in modules.items() if name in map(str.lower, owners)}
            assert any(EXTRAS.get(module) == extra for module in of_it), requirement
