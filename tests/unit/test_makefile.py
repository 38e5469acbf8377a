"""Actions of make on a fresh clone, on a second call, and after an interruption."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
(TORCH,) = [
    line
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.startswith("torch==")
]


# Variables that the `make test` which runs these tests hands down, with its own settings.
FROM_MAKE = "MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHON TORCH TORCH_INDEX LAB_ARGS".split()


def make(folder, *arguments):
    """Run make in `folder`, as if called by hand."""
    environment = {name: v for name, v in os.environ.items() if name not in FROM_MAKE}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path):
    """A copy of what make reads, with no environment yet, in a folder with a blank in its name."""
    folder = tmp_path / "my lab"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    return folder


@pytest.fixture
def installed(checkout):
    """The same with an environment that is complete, as far as make can tell."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (checkout / ".venv" / ".torch-index").write_text("https://example.org/cpu\n")
    (checkout / ".venv" / ".installed").write_text(f"{checkout}\n")
    return checkout


def installs(folder, *arguments):
    """The commands that `make lab` would make the environment with."""
    lines = make(folder, "-n", "lab", *arguments).stdout.splitlines()
    wanted = (" -m venv ", "install_torch.py", " -m pip ")
    return [line for line in lines if any(each in line for each in wanted)]


def test_torch_is_installed_first_and_by_its_exact_version(checkout):
    venv, torch, *others = installs(checkout)
    assert "-m venv --clear .venv" in venv
    assert f"install_torch.py {TORCH} .venv/.torch-index " in torch
    assert torch.endswith('--index "" --cpu-index "https://download.pytorch.org/whl/cpu"')
    assert all("--constraint constraints.txt" in line for line in others)
    assert others[-1].endswith("--editable '.[lab,serve,rl,dev]'")


def test_another_build_of_torch_comes_from_its_own_index_and_nothing_else_does(checkout):
    _, torch, *others = installs(checkout, "TORCH_INDEX=https://example.org/cu130")
    assert '--index "https://example.org/cu130"' in torch
    assert not any("index" in line for line in others)


def test_a_second_call_installs_nothing(installed):
    assert installs(installed) == []
    assert installs(installed, "TORCH_INDEX=https://example.org/cpu") == []


@pytest.mark.parametrize(("target", "is_needed"), [("lab", False), ("book", True), ("test", True)])
def test_what_builds_the_website_is_installed_for_it_and_for_its_tests(
    installed, target, is_needed
):
    commands = make(installed, "-n", target).stdout
    assert ("--editable '.[book]'" in commands) is is_needed


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_dependency_is_installed_into_what_is_there(installed, name):
    stamp_s = (installed / ".venv" / ".installed").stat().st_mtime
    os.utime(installed / name, (stamp_s + 10, stamp_s + 10))
    commands = installs(installed)
    assert commands
    assert not any(" -m venv " in line for line in commands)


def test_an_interrupted_install_is_recreated(installed):
    (installed / ".venv" / ".installed").unlink()
    assert "-m venv --clear .venv" in installs(installed)[0]


def test_a_moved_folder_gets_a_new_environment(installed):
    moved = installed.rename(installed.with_name("moved"))
    assert "-m venv --clear .venv" in installs(moved)[0]


def test_an_environment_whose_python_is_gone_is_recreated(installed):
    (installed / ".venv" / "bin" / "python").unlink()
    (installed / ".venv" / "bin" / "python").symlink_to("/nowhere/python3")
    assert "-m venv --clear .venv" in installs(installed)[0]


def test_another_index_for_torch_recreates_the_environment(installed):
    assert "--clear" in installs(installed, "TORCH_INDEX=https://example.org/cu130")[0]


def test_the_lab_is_opened_by_the_command_that_an_installed_package_has(installed):
    python = installed / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text('#!/bin/sh\ncase "$1" in -c) ;; *) echo "$@" ;; esac\n')
    python.chmod(0o755)
    words = make(installed, "lab", "LAB_ARGS=--no-browser --port 8899").stdout.splitlines()[-1]
    assert words == "-m labkit.cli lab my-lab -- --no-browser --port 8899"


@pytest.mark.parametrize(
    ("pretence", "message"),
    [
        ("sys.version_info = (3, 9, 6)", "needs Python 3.11 or newer, and {} is 3.9.6."),
        ("sys.modules['ensurepip'] = None", "{} ({}) can't make environments"),
    ],
)
def test_a_python_that_cannot_serve_is_named_with_its_cure(checkout, pretence, message):
    python = checkout.parent / "python3"
    run = "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; {pretence}; {run}" "$1"\n'
    )
    python.chmod(0o755)
    result = make(checkout, "lab", f"PYTHON={python}")
    version = ".".join(map(str, sys.version_info[:3]))
    first, *_ = result.stderr.splitlines()
    assert message.format(sys.executable, version) in first
    assert "make lab PYTHON=" in first or "apt install python3." in first
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_there_is_named_with_its_cure(checkout):
    result = make(checkout, "lab", "PYTHON=python3.99")
    assert result.stderr.startswith("There is no python3.99 here")
    assert not (checkout / ".venv").exists()


def test_make_alone_lists_every_target(checkout):
    lines = make(checkout).stdout.splitlines()
    phony = "help lab book test test-fast lint format notebooks pins clean".split()
    assert [line.split()[1] for line in lines] == phony
    assert all(len(line.split()) > 3 for line in lines)


def test_a_codespace_is_installed_by_make(checkout):
    made = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["onCreateCommand"]
    program, target = made.split()
    assert program == "make"
    assert "install_torch.py" in make(checkout, "-n", target).stdout
