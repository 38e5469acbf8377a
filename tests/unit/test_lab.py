"""`labkit lab` becomes JupyterLab on a copy of the course; what it passes on, and its settings."""

import errno
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from jupyter_core.paths import jupyter_config_path
from typer import BadParameter

from labkit.cli import lab
from labkit.grade.workspace import COPY


@pytest.fixture
def becomes(tmp_path, monkeypatch):
    """Call `labkit lab` in a folder without a copy: the words and variables of JupyterLab."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        lab, "write_copy", lambda folder: (tmp_path / ".started").write_text(f"{folder}")
    )
    monkeypatch.setattr(lab.os, "environ", {"PATH": "/usr/bin", "JUPYTER_PATH": "/elsewhere"})
    called = []
    monkeypatch.setattr(lab.os, "execv", lambda path, words: called.append([path, *words]))

    def becomes(*arguments):
        called.clear()
        lab.lab(*arguments)
        return called[0], dict(os.environ)

    return becomes


def test_a_missing_copy_is_written_and_opened_at_its_first_page(becomes, tmp_path):
    words, variables = becomes()
    assert words[:4] == [sys.executable, sys.executable, "-m", "jupyterlab"]
    assert (tmp_path / ".started").read_text() == str(tmp_path / COPY)
    assert f"--ServerApp.root_dir={tmp_path / COPY}" in words
    assert f"--LabApp.default_url=/lab/tree/{lab.FIRST_PAGE}" in words
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert "JUPYTER_PATH" not in variables  # kernels of other environments


def test_a_copy_that_is_there_is_updated_also_from_inside(becomes, tmp_path, monkeypatch):
    updated = []
    monkeypatch.setattr(lab, "update", updated.append)
    (tmp_path / COPY / "notebooks").mkdir(parents=True)
    (tmp_path / COPY / ".course.json").write_text("{}")
    becomes()
    monkeypatch.chdir(tmp_path / COPY / "notebooks")
    words, _ = becomes(Path())
    assert updated == [tmp_path / COPY] * 2
    assert f"--ServerApp.root_dir={tmp_path / COPY}" in words


@pytest.mark.parametrize(
    ("own", "option"),
    [
        ("--ip=0.0.0.0", "ip="),
        ("--ServerApp.ip=0.0.0.0", "ip="),
        ("--KernelManager.transport=tcp", "transport="),
        ("--allow-root", "allow-root"),
    ],
)
def test_an_option_of_the_callers_comes_last_and_once(becomes, monkeypatch, own, option):
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0)
    by_itself, _ = becomes()
    assert sum(option in word for word in by_itself) == 1
    words, _ = becomes(Path(COPY), [own, "--port", "8899"])
    assert [word for word in words if option in word] == [own]
    assert words[-3:] == [own, "--port", "8899"]


def test_options_without_a_folder_are_refused(becomes):
    with pytest.raises(BadParameter, match="labkit lab my-lab -- --no-browser"):
        becomes(Path("--no-browser"))


def test_jupyterlab_looks_for_its_settings_in_the_package(becomes, monkeypatch):
    _, variables = becomes()
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", variables["JUPYTER_CONFIG_PATH"])
    files = [Path(each, "labconfig") for each in jupyter_config_path()]
    assert lab.SETTINGS / "labconfig" in files
    settings = (lab.SETTINGS / "labconfig" / "default_setting_overrides.json").read_text()
    assert json.loads(settings)["@jupyter-widgets/jupyterlab-manager:plugin"]["saveState"] is True


@pytest.mark.parametrize("case", ["there is room", "too long", "no folder", "no sockets"])
def test_kernels_are_reached_by_tcp_where_a_socket_cannot_be_a_file(case, tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    folder = tempfile.mkdtemp(prefix="r") if case == "there is room" else str(tmp_path / "a")
    if case == "too long":
        folder += "b" * (lab.LONGEST + 1 - len(f"{folder}/{lab.NAME}"))
    elif case == "no folder":
        folder = str(tmp_path / "a file" / "b")
    elif case == "no sockets":
        monkeypatch.setattr(socket.socket, "bind", refuses)
    assert lab.transport(folder) == ("ipc" if case == "there is room" else "tcp")
    assert case != "there is room" or os.listdir(folder) == []


def refuses(*_):
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")
