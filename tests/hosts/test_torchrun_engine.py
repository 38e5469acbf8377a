"""torch's elastic agent as an engine of `run`."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from labkit import RankError, RunError, run
from labkit.hosts import torchrun
from labkit.hosts.torchrun import Torchrun
from labkit.launch.payload import RunDirectory
from tests.forked_programs import ForkedProgram, script

SCALE = torch.tensor([2.0, 3.0])


def scaled_sum(world, power):
    print(f"rank {world.rank} of {world.size}")
    y = world.all_reduce(SCALE**power * world.rank)
    return y, os.environ.get("LOCAL_RANK"), torch.rand(1).item()


def processes_about(words):
    """Command lines, of agents and workers among them, that contain `words`."""
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listing.splitlines() if words in line]


def left_of(words):
    """Return the processes that are left a minute after they were killed: none."""
    deadline = time.monotonic() + 60
    while (left := processes_about(words)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def test_the_run_is_that_of_the_local_engine(capsys):
    local = run(scaled_sum, 2, (2,))
    lines = sorted(capsys.readouterr().out.splitlines())
    other = run(scaled_sum, 2, (2,), engine="torchrun", timeout=600)
    assert sorted(capsys.readouterr().out.splitlines()) == lines
    for (its, name, _), (expected, *_) in zip(other.values, local.values, strict=True):
        assert torch.equal(its, expected)
        assert name is not None, "torchrun did not start this rank"
    assert len({unseeded for *_, unseeded in other.values + local.values}) == 4
    assert other.logs == local.logs
    assert other.device == local.device
    assert [each.by_operation for each in other.traffic] == [
        each.by_operation for each in local.traffic
    ]
    assert [op.name for op in other.timeline[1].operations] == ["all_reduce #1"]
    assert other.timeline[1].operations[0].site == local.timeline[1].operations[0].site


# The options that torchrun sets for --standalone.
STANDALONE = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]


class ForkedAgent(ForkedProgram):
    """torch's agent, and its workers: forked, where new interpreters take seconds to start."""

    def __init__(self, command, stdin, stdout, stderr, env, start_new_session):
        words = command[command.index("--standalone") + 1 :]
        super().__init__(_be_agent, words, env=env)


def _be_agent(words):
    config, _, words = config_from_args(parse_args([*STANDALONE, *words]))
    config.start_method = "fork"
    address, folder = words[-2:]
    elastic_launch(config, torchrun.worker)(address, folder)


def test_a_killed_rank_is_named_with_its_signal(monkeypatch):
    def killed(world):
        world.barrier()
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()

    monkeypatch.setattr(torchrun.subprocess, "Popen", ForkedAgent)
    with pytest.raises(RankError, match="rank 1 died: .*SIGKILL") as caught:
        run(killed, 2, engine="torchrun")
    assert caught.value.exit_code == -signal.SIGKILL
    assert "barrier #2 (test_torchrun_engine.py, line" in caught.value.consequences[0]


@pytest.fixture
def short_folder():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("host", ["node1", "a-long-name-of-a-host." * 2 + "its-cluster.example"])
def test_what_a_killed_driver_leaves_the_next_run_sweeps(short_folder, monkeypatch, host):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    directory = RunDirectory()
    context = multiprocessing.get_context("fork")

    def is_killed():
        Torchrun(directory)
        os.kill(os.getpid(), signal.SIGKILL)

    driver = context.Process(target=is_killed)
    driver.start()
    driver.join()
    assert driver.exitcode == -signal.SIGKILL
    parent = torchrun._short_folder()
    (left,) = parent.glob(f"labkit-meet-{host}-{driver.pid}-*")
    next_one = Torchrun(directory)
    assert not left.exists()
    (ours,) = parent.glob(f"labkit-meet-{host}-{os.getpid()}-*")
    assert len(str(ours / "s")) <= 103
    next_one.end()
    assert not ours.exists()


STOPPED = """
import os, signal, threading, time, labkit
def sleeps(world):
    print("asleep")
    time.sleep(600)
try:
    labkit.run(sleeps, 2, engine="torchrun", timeout=600)
except KeyboardInterrupt as stop:
    print("stopped", "sleeps" in str(stop), flush=True)
"""


def test_stop_waits_for_nobody_and_leaves_nothing(tmp_path):
    path = tmp_path / "stopped.py"
    path.write_text(STOPPED)
    driver = script(path, TMPDIR=str(tmp_path))
    with driver.stdout:
        assert {driver.stdout.readline() for _ in range(2)} == {
            "[rank 0] asleep\n",
            "[rank 1] asleep\n",
        }
        assert len(processes_about(str(tmp_path))) >= 3, "the agent and its workers"
        driver.send_signal(signal.SIGINT)
        assert driver.stdout.readline() == "stopped True\n"
    assert [path.name for path in tmp_path.iterdir()] == ["stopped.py"]
    assert left_of(str(tmp_path)) == []


STOPPED_AT_ONCE = """
import os, signal, subprocess, threading, time, labkit

class Started(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

subprocess.Popen = Started
try:
    labkit.run(lambda: time.sleep(600), 2, engine="torchrun", timeout=600)
except KeyboardInterrupt:
    print("stopped")
"""


def test_stop_while_torchrun_starts_leaves_nothing(tmp_path):
    path = tmp_path / "stopped.py"
    path.write_text(STOPPED_AT_ONCE)
    assert script(path, TMPDIR=str(tmp_path)).output() == "stopped\n"
    assert left_of(str(tmp_path)) == []


def test_an_engine_that_is_none_is_named():
    with pytest.raises(ValueError, match="engine='slurm' is unknown; choose 'local'"):
        run(print, 2, engine="slurm")


def test_a_torchrun_that_cannot_start_shows_its_last_words(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(RunError, match=r"code 3 before its ranks were there(.|\n)*no torch here"):
        run(print, 2, engine="torchrun")


def test_a_worker_that_ends_before_it_hands_over_its_rank_is_no_rank_that_has_come():
    worker, ours = socket.socketpair()
    worker.close()
    with ours:
        assert torchrun._taken_over(ours) is None


def test_where_a_worker_ends_with_its_pipes_torchruns_last_words_are_shown(monkeypatch):
    """The agent, whose worker has ended, ends too."""
    fake = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    monkeypatch.setattr(
        Torchrun,
        "_command",
        lambda self, num_ranks, address: [
            *(sys.executable, "-c", f"{fake}; print('a worker failed'); sys.exit(1)", address)
        ],
    )
    with pytest.raises(RunError, match=r"code 1 before its ranks were there(.|\n)*a worker failed"):
        run(print, 2, engine="torchrun")
