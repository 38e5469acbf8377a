"""What an export replaces, and what it must not: on a file, a link, a pipe, a folder."""

import os
import stat
import sys

import pytest

from labkit import cli
from labkit.progress.exchange import write_whole


@pytest.fixture(params=["--json", "--anki"])
def export(request, tmp_path, monkeypatch, capsys):
    """`labkit export --json PATH`, and the same with --anki: (exit status, stderr)."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")

    def call(path):
        monkeypatch.setattr(sys, "argv", ["labkit", "export", request.param, str(path)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr().err

    return call


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_keeps_its_mode_and_a_new_one_has_that_of_any_file(export, tmp_path):
    old, new, plain = tmp_path / "old", tmp_path / "new", tmp_path / "plain"
    old.write_text("before")
    old.chmod(0o664)
    plain.touch()
    assert export(old)[0] == export(new)[0] == 0
    assert old.read_text() != "before" and mode_of(old) == 0o664
    assert mode_of(new) == mode_of(plain)


def test_a_link_stays_and_what_it_leads_to_is_written(export, tmp_path):
    (tmp_path / "far").mkdir()
    link, target = tmp_path / "link", tmp_path / "far" / "target"
    link.symlink_to(target)
    assert export(link)[0] == 0  # nothing stands there yet
    target.write_text("before")
    assert export(link)[0] == 0
    assert link.is_symlink() and target.read_text() != "before"
    assert sorted(path.name for path in target.parent.iterdir()) == ["target"]


def test_a_pipe_stays_a_pipe_and_is_written_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", "text")
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["", ".", "folder"])
def test_a_folder_and_no_name_at_all_are_refused(export, tmp_path, monkeypatch, name):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    status, told = export(name)
    assert status == 2 and "directory" in told
    assert (tmp_path / "folder").is_dir()
    assert not [path for path in tmp_path.iterdir() if path.name not in ("folder", "home")]
