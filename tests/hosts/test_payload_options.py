"""Options that could only fail after the job are refused before it."""

import sys
import time
from argparse import ArgumentTypeError

import pytest
import torch

from labkit.hosts.environment import Environment
from labkit.hosts.hosted_job import _options, _require, _seconds, _seconds_or_never

ONE_HOST = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "test",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


@pytest.fixture
def environment(monkeypatch):
    for name, value in ONE_HOST.items():
        monkeypatch.setenv(name, value)
    return Environment.read()


def test_a_folder_that_cannot_be_made_is_refused(environment, tmp_path):
    file = tmp_path / "a_file"
    file.touch()
    with pytest.raises(RuntimeError, match="--out .*a_file"):
        _require(file, None, environment)
    _require(tmp_path / "new" / "folder", None, environment)


def test_what_a_host_cannot_do_is_said_by_its_first_rank(environment, tmp_path, monkeypatch):
    file, slept_s = tmp_path / "a_file", []
    file.touch()
    monkeypatch.setattr(time, "sleep", slept_s.append)
    for local_rank, expected in ((0, []), (1, [10.0])):  # torchrun ends it meanwhile
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        with pytest.raises(RuntimeError, match="no folder can be made"):
            _require(file, None, environment)
        assert slept_s == expected


def test_more_ranks_than_gpus_are_refused_with_the_choices(environment, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="2 ranks and 1 GPUs"):
        _require(tmp_path, "cuda", environment)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    _require(tmp_path, "cuda", environment)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e300", "x", ""])
def test_an_odd_timeout_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="give a number of seconds above 0"):
        _seconds(text)


def test_the_help_says_when_a_hang_ends(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["payload", "--help"])
    with pytest.raises(SystemExit):
        _options()
    said = " ".join(capsys.readouterr().out.split())
    assert "--timeout TIMEOUT seconds that one operation may take (600)" in said
    assert "seconds without progress after which the doctor is asked why (5), or never" in said


@pytest.mark.parametrize(("text", "expected"), [("never", None), ("0.5", 0.5), ("30", 30.0)])
def test_the_doctor_is_asked_after_so_many_seconds_or_never(text, expected):
    assert _seconds_or_never(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "nan", "Never", ""])
def test_an_odd_stall_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="give a number of seconds above 0"):
        _seconds_or_never(text)
