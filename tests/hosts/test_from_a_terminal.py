"""torchrun -m labkit.launch.payload FILE, on one host.

One test runs the command. The others start torch's elastic agent in this process: see agent.py.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from agent import run_agent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

import labkit
from labkit import Deadlock, RankError, Run
from labkit.hosts import hosted_job as command
from labkit.hosts.hosted_rank import read_program

ROOT = Path(__file__).parents[2]


def torchrun(*words, cwd):
    """Do what `torchrun WORDS` does: what the workers printed, and whether all is well."""
    logs, is_good = cwd / "logs" / str(len(list(cwd.glob("logs/*")))), True
    logs.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(1) as pool:  # on a thread the agent leaves signal handlers alone
            pool.submit(run_agent, words, "forkserver", cwd, logs).result()
    except ChildFailedError:
        is_good = False
    texts = [path.read_text() for path in sorted(logs.rglob("*.log"))]
    return " ".join("".join(texts).split()), is_good


def payload(*words, cwd, ranks=2):
    options = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    options += [f"--nproc-per-node={ranks}", "-m", "labkit.launch.payload"]
    return torchrun(*options, *words, cwd=cwd)


PROGRAM = """
import sys
import torch

def main(world):
    world.all_reduce(torch.ones(1))
    if world.rank == 1:
        raise ValueError(f"no such thing: {sys.argv[1]}")
    world.barrier()
"""


def test_torchrun_names_the_rank_that_failed_and_load_raises_its_error(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "labkit.launch.payload"),
            *("train.py", "--out", "failed", "--", "--fast"),
        ],
        cwd=tmp_path,
        env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0
    assert done.stderr.count("labkit: rank 1, on host") == 1, done.stderr
    root = done.stderr.partition("Root Cause")[2]
    assert "1 (local_rank: 1)" in root and "ValueError" in root and "--fast" in root, root
    with pytest.raises(RankError, match="--fast") as caught:
        Run.load(tmp_path / "failed")
    error = caught.value
    assert (error.rank, error.exception_type, error.site.line) == (1, "ValueError", 8)
    assert re.search(r"rank 0 .*barrier #2 .*train.py, line 9\n", str(error))
    assert [len(timeline.operations) for timeline in error.timeline] == [2, 1]


SCALE = torch.tensor([2.0, 3.0])


def scaled_sum(world, power):
    print(f"rank {world.rank} of {world.size}")
    assert int(os.environ["TORCH_FR_BUFFER_SIZE"]) > 0, "torch keeps no record of its own"
    return world.all_reduce(SCALE**power * world.rank)


def test_a_saved_payload_runs_and_its_folder_is_refused_to_another_job(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_SECRET", secret := "not for other hosts")
    saved = labkit.save_payload(tmp_path / "sums.payload", scaled_sum, (2,))
    assert secret.encode() not in saved.read_bytes()
    output, is_good = payload(saved, "--out", "first", cwd=tmp_path)
    assert is_good, output
    assert "[rank 1] rank 1 of 2" in output
    assert output.count('Run.load("first")') == 1, output
    loaded = Run.load(tmp_path / "first")
    assert torch.equal(loaded.values[0], SCALE**2)
    assert loaded.logs == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert loaded.traffic[0].sent_bytes == SCALE.nbytes
    assert loaded.memory[0].peak_bytes > 2**20

    _, is_good = payload(saved, "--out", "first", cwd=tmp_path, ranks=1)
    assert not is_good
    assert [each.name for each in (tmp_path / "first").glob("attempt-*")] == ["attempt-0"]


# Slurm's variables for a job of one host, and a torchrun that only prints how it was called.
OF_SLURM = {
    "scontrol": '[ "$1 $2 $3" = "show hostnames here" ] && echo localhost',
    "srun": 'while [ "${1#--}" != "$1" ]; do echo "$1" >> srun; shift; done; exec "$@"',
    "torchrun": 'for word in "$@"; do echo "$word" >> torchrun; done',
}


def test_the_slurm_script_trains_and_leaves_a_run(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in OF_SLURM.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    variables = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SLURM_JOB_ID": (job := str(os.getpid())),
        "SLURM_JOB_NODELIST": "here",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "3",
        "RANKS_PER_HOST": "2",
        "STEPS": "12",
    }
    command = ["bash", "examples/slurm.sbatch"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **variables}, check=True)
    options = (tmp_path / "srun").read_text().split()
    assert options == ["--cpus-per-task=3", "--kill-on-bad-exit=0"]
    output, is_good = torchrun(*(tmp_path / "torchrun").read_text().splitlines(), cwd=tmp_path)
    assert is_good, output
    run = Run.load(tmp_path / "runs" / job)
    losses = run.values[0]["losses"]
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert run.values[1] == run.values[0]
    assert list((tmp_path / "runs" / f"{job}-checkpoints").glob("step-00000010-*/manifest.json"))
    assert "step 10: loss" in run.logs[0]


HANGS = """
import time
from pathlib import Path
import torch
import torch.distributed as dist

def leaves_early(world):
    world.all_reduce(torch.ones(1))
    if world.rank == 0:
        world.barrier()

def printed():
    return "".join(path.read_text() for path in Path("logs").rglob("*.log"))

def in_a_cycle(world):
    while world.rank == 1 and "[labkit]" not in printed():
        time.sleep(0.2)
    world.all_reduce(torch.ones(1))
    world.recv(torch.empty(1), 1 - world.rank)

def reduces_alone(world):
    if world.rank == 1:
        dist.all_reduce(torch.ones(1))

def leaves(world):
    world.all_reduce(torch.ones(1), wait=False)
"""


def ends_wrong(function, *options, cwd):
    """Return the output of a function of HANGS, and whether its job succeeded."""
    (cwd / "train.py").write_text(HANGS)
    words = (f"train.py:{function}", "--out", "kept", "--stall", "0.5", *options)
    return payload(*words, cwd=cwd)


@pytest.mark.parametrize(
    ("function", "options", "error", "where"),
    [
        (
            "leaves_early",  # found when the operation has run into its timeout
            ("--stall", "never", "--timeout", "6"),
            Deadlock,
            r"rank 0 .*barrier #2 \(train.py, line 10\); rank 1 .*all_reduce #1",
        ),
        ("reduces_alone", (), Deadlock, r"rank 1 .*all_reduce #1 of torch.distributed .*line 23"),
    ],
    ids=["leaves early", "waits outside the Groups"],
)
def test_a_job_whose_ranks_do_not_meet_has_one_verdict(tmp_path, function, options, error, where):
    output, is_good = ends_wrong(function, *options, cwd=tmp_path)
    assert not is_good
    assert len(re.findall(f"labkit: (?=.*{where})", output)) == 1, output
    with pytest.raises(error, match=where):
        Run.load(tmp_path / "kept")


def test_a_slow_rank_is_reported_and_a_cycle_of_waits_ends_the_job(tmp_path):
    output, is_good = ends_wrong("in_a_cycle", cwd=tmp_path)
    assert not is_good
    slow = r"\[labkit\] rank 0 .*?all_reduce #1 \(train.py, line 18\) for rank 1.*?line 17\)"
    assert len(re.findall(slow, output)) == 1, output
    with pytest.raises(
        Deadlock, match=r"rank 1 in recv #1 from rank 0 \(train.py, line 19\)"
    ) as its:
        Run.load(tmp_path / "kept")
    assert [len(timeline.operations) for timeline in its.value.timeline] == [2, 2]
    assert all("in_a_cycle" in stack for stack in its.value.stacks)


def test_an_operation_that_was_never_waited_for_is_reported_and_the_job_is_good(tmp_path):
    output, is_good = ends_wrong("leaves", cwd=tmp_path)
    assert is_good
    assert re.search(r"\[labkit\] ranks 0 and 1 .*all_reduce #1 \(train.py, line 26\)", output)


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [("def train(world): ...\n", "ValueError", None), ("x = 1\ny = = 2\n", "SyntaxError", 2)],
    ids=["no main", "no Python"],
)
def test_an_error_in_reading_the_program_has_no_line_of_the_launcher(tmp_path, text, error, line):
    (tmp_path / "train.py").write_text(text)
    output, is_good = payload("train.py", "--out", "failed", cwd=tmp_path, ranks=1)
    assert not is_good
    assert "importlib" not in output and "program.py" not in output
    with pytest.raises(RankError) as caught:
        Run.load(tmp_path / "failed")
    assert caught.value.exception_type == error
    assert (caught.value.site and caught.value.site.line) == line


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("gone.py", None, FileNotFoundError),
        ("empty.py", "", ValueError),
        ("odd.payload", "text", ValueError),
        ("key.payload", "K\x01.", ValueError),  # a pickle whose error is none of pickle's own
        ("train.py:", "", ValueError),
        ("train.py:a b", "", ValueError),
        ("null.py", "x = '\0'", ValueError),
        ("later.py", "async def main(world): ...", TypeError),
        ("bits.py", "def main(world): yield 1", TypeError),
        (".", None, ValueError),
    ],
)
def test_a_file_that_is_no_program_is_refused_by_name(tmp_path, monkeypatch, file, text, error):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = file.partition(":")[0]
    if text is not None:
        Path(name).write_text(text)
    with pytest.raises(error, match=re.escape(name) if error is not TypeError else "main"):
        read_program(file)


def test_options_of_the_program_without_dashes_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["payload", "train.py", "--steps", "200"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "--steps 200" in capsys.readouterr().err
