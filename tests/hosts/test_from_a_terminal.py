"""torchrun -m labkit.launch.payload FILE, on one host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import labkit
from labkit import Deadlock, RankError, Run
from labkit.launch.hosts.program import read_program

ROOT = Path(__file__).parents[2]


def torchrun(*words, cwd, ranks=2):
    """The terminal form; its output and its exit code."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, "-m", "labkit.launch.payload", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr, done.returncode


SCALE = torch.tensor([2.0, 3.0])


def scaled_sum(world, power):
    print(f"rank {world.rank} of {world.size}")
    assert int(os.environ["TORCH_FR_BUFFER_SIZE"]) > 0, "torch keeps no record of its own"
    return world.all_reduce(SCALE**power * world.rank)


def test_a_saved_payload_runs_in_a_terminal(tmp_path, monkeypatch):
    secret = "not for other hosts"
    monkeypatch.setenv("LABKIT_TEST_SECRET", secret)
    payload = labkit.save_payload(tmp_path / "sums.payload", scaled_sum, (2,))
    assert secret.encode() not in payload.read_bytes()
    output, code = torchrun(payload, "--out", "first", cwd=tmp_path)
    assert code == 0, output
    assert "[rank 1] rank 1 of 2\n" in output
    assert output.count('labkit: kept in first; Run.load("first") opens it\n') == 1, output
    loaded = Run.load(tmp_path / "first")
    assert torch.equal(loaded.values[0], SCALE**2)
    assert loaded.logs == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert loaded.traffic[0].sent_bytes == SCALE.nbytes
    assert loaded.memory[0].peak_bytes > 2**20
    (tmp_path / "first" / "attempt-0" / "rank-0.json").unlink()  # as if it had been ended before
    with pytest.raises(ValueError, match=r"missing here: 0\. The job was ended"):
        Run.load(tmp_path / "first")

    output, code = torchrun(payload, "--out", "first", cwd=tmp_path, ranks=1)
    assert code != 0, "another job went on in this folder"
    assert "first holds a Run of job" in output and "name another folder with --out" in output
    assert not (tmp_path / "first" / "attempt-1").exists()


PROGRAM = """
import sys
import torch

def main(world):
    world.all_reduce(torch.ones(1))
    if world.rank == 1:
        raise ValueError(f"no such thing: {sys.argv[1]}")
    world.barrier()
"""


def test_a_failure_in_a_terminal_ends_in_one_verdict_which_load_raises_again(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    output, code = torchrun("train.py", "--out", "failed", "--", "--fast", cwd=tmp_path, ranks=3)
    assert code != 0
    assert output.count("labkit: rank 1, on host") == 1, output
    root = output[output.index("Root Cause (first observed failure)") :]
    assert "rank      : 1 (local_rank: 1)" in root, "another rank is blamed for it"
    assert "ValueError: no such thing: --fast" in root
    with pytest.raises(RankError) as caught:
        Run.load(tmp_path / "failed")
    error = caught.value
    assert (error.rank, error.exception_type, error.site.line) == (1, "ValueError", 8)
    assert "raised ValueError at train.py, line 8: no such thing: --fast" in str(error)
    assert "ranks 0 and 2  wait in barrier #2          train.py, line 9\n" in str(error)
    assert [len(timeline.operations) for timeline in error.timeline] == [2, 1, 2]


LEAVES_EARLY = """
import torch

def warm_up(world):
    world.all_reduce(torch.ones(1))
    if world.rank == 0:
        world.barrier()
"""


@pytest.mark.parametrize(
    "options",
    ["--stall 1", "--stall never --timeout 3"],
    ids=["found", "ended by the timeout"],
)
def test_a_rank_that_waits_in_vain_is_told_for_whom(tmp_path, options):
    (tmp_path / "train.py").write_text(LEAVES_EARLY)
    words = ("train.py:warm_up", "--out", "hung", *options.split())
    output, code = torchrun(*words, cwd=tmp_path)  # an operation's timeout is 600 s, the test's 60
    assert code != 0
    assert output.count("labkit: rank 0 waits in barrier #2 (train.py, line 7); rank 1 ret") == 1
    assert "traceback : rank 0 waits in barrier #2 (train.py, line 7); rank 1 ret" in output
    with pytest.raises(Deadlock, match=r"rank 1 returned after all_reduce #1"):
        Run.load(tmp_path / "hung")


IN_A_CIRCLE = """
import time
import torch
import torch.distributed as dist

def with_groups(world):
    time.sleep(8 * (world.rank == 2))  # it computes: that is told, and waited for
    world.all_reduce(torch.ones(1))
    world.recv(torch.empty(1), (world.rank + 1) % world.size)

def past_the_groups(world):
    if world.rank != 1:
        dist.barrier()
    if world.rank == 0:
        dist.barrier()
"""


def test_ranks_that_wait_for_each_other_are_found_and_a_slow_one_is_told(tmp_path):
    (tmp_path / "train.py").write_text(IN_A_CIRCLE)
    words = ("train.py:with_groups", "--out", "hung", "--stall", "0.5")
    output, code = torchrun(*words, cwd=tmp_path, ranks=3)
    assert code != 0
    told = "[labkit] ranks 0 and 1 wait in all_reduce #1 (train.py, line 8) for rank 2, which"
    assert output.count(told) == 1, output
    assert "(train.py, line 7). An operation may take 600 s." in output
    found = "labkit: ranks 0, 1 and 2 wait in a circle, each for the next: rank 0 in recv #1 from"
    assert output.count(found) == 1, output
    with pytest.raises(
        Deadlock, match=r"rank 2 in recv #1 from rank 0 \(train.py, line 9\)"
    ) as its:
        Run.load(tmp_path / "hung")
    assert "Where each rank was:" in str(its.value)
    assert [len(timeline.operations) for timeline in its.value.timeline] == [2, 2, 2]
    assert all("with_groups" in stack for stack in its.value.stacks)


def test_what_hangs_past_the_groups_is_numbered_by_what_the_program_called(tmp_path):
    """Rank 2 waits in its first barrier, for one that has called none; so rank 0 does."""
    (tmp_path / "train.py").write_text(IN_A_CIRCLE)
    words = ("train.py:past_the_groups", "--out", "hung", "--stall", "0.5")
    output, code = torchrun(*words, cwd=tmp_path, ranks=3)
    assert code != 0
    found = "ranks 0 and 2 wait in barrier #1 of torch.distributed (train.py, line 13); rank 1"
    assert f"{found} returned before any operation" in output, output
    where = output[output.index("Where each rank was:") :].splitlines()[1:3]
    barrier = "barrier #1 of torch.distributed"
    assert where[0] == f"  ranks 0 and 2  wait in {barrier}  train.py, line 13", output
    assert where[1] == "  rank 1         returned before any operation"


ENDS_WRONG = """
import torch
import torch.distributed as dist

def receives(world):
    if world.rank == 1:
        dist.recv(torch.ones(1), 0)

def mixes(world):
    if world.rank == 0:
        world.all_reduce(torch.ones(1))
    else:
        dist.all_reduce(torch.ones(1))

def leaves(world):
    world.all_reduce(torch.ones(1), wait=False)
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("receives", "labkit: rank 1 waits in recv #1 of torch.distributed from rank 0 (train.py"),
        ("mixes", "line 11) and had it back, and rank 1 never called it; what was called past"),
        ("leaves", "[labkit] ranks 0 and 1 never waited for all_reduce #1 (train.py, line 16): "),
    ],
    ids=["in vain", "mixed up", "left over"],
)
def test_what_is_past_the_groups_or_left_over_is_told_as_on_one_host(tmp_path, function, said):
    (tmp_path / "train.py").write_text(ENDS_WRONG)
    words = (f"train.py:{function}", "--out", "kept", "--stall", "0.5")
    output, code = torchrun(*words, cwd=tmp_path)
    assert said in " ".join(output.split()), output
    assert (code == 0) == (function == "leaves")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("gone.py", None, "there is no gone.py on this host"),
        ("empty.py", "", "has no function main"),
        ("odd.payload", "text", "is no payload"),
        ("key.payload", "K\x01.", "is no payload"),  # a pickle whose error is none of pickle's own
        ("train.py:", "", "no function is called ''; write train.py for its main"),
        ("train.py:a b", "", "no function is called 'a b'"),
        ("null.py", "x = '\0'", "null.py is no file that Python can read"),
        ("later.py", "async def main(world): ...", "would only be begun"),
        ("bits.py", "def main(world): yield 1", "would only be begun"),
    ],
)
def test_a_file_that_is_no_program_is_explained(tmp_path, monkeypatch, file, text, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        Path(file.partition(":")[0]).write_text(text)
    with pytest.raises((FileNotFoundError, ValueError, TypeError), match=words):
        read_program(file)


def test_a_folder_is_no_program(tmp_path):
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        read_program(str(tmp_path))


def test_what_is_asked_for_wrongly_is_no_error_at_a_line_of_the_launchers(tmp_path):
    (tmp_path / "train.py").write_text("def train(world): ...\n")
    output, code = torchrun("train.py", "--out", "failed", cwd=tmp_path, ranks=1)
    assert code != 0
    assert "raised ValueError: train.py has no function main: define" in output, output
    assert "program.py" not in output


def test_a_file_that_is_no_python_is_placed_at_its_own_line(tmp_path):
    (tmp_path / "train.py").write_text("def main(world):\n    x = = 1\n")
    output, code = torchrun("train.py", "--out", "failed", cwd=tmp_path, ranks=1)
    assert code != 0
    assert "raised SyntaxError at train.py, line 2: invalid syntax" in output, output
    assert "importlib" not in output and "program.py" not in output


def test_options_of_the_program_without_dashes_are_explained_once(tmp_path):
    (tmp_path / "train.py").write_text("def main(world): ...\n")
    output, code = torchrun("train.py", "--steps", "200", cwd=tmp_path)
    assert code != 0
    said = "--steps 200: no option of labkit's. What belongs to FILE comes after --"
    assert output.count(said) == 1, output
    assert output.count("usage:") == 1, output
