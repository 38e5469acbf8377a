"""The examples run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

from labkit import Run

ROOT = Path(__file__).parents[2]
# What Slurm has on a host, for a job of one host.
SCONTROL = '#!/bin/sh\n[ "$1 $2 $3" = "show hostnames here" ] && echo localhost\n'
SRUN = """#!/bin/sh
: > srun-options
while [ "${1#--}" != "$1" ]; do echo "$1" >> srun-options; shift; done
exec "$@"
"""


def test_the_slurm_script_trains_and_leaves_a_run(tmp_path):
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    job = str(os.getpid())
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "here",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "3",
        "RANKS_PER_HOST": "2",
        "STEPS": "12",
    }
    done = subprocess.run(
        ["bash", "examples/slurm.sbatch"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    options = (tmp_path / "srun-options").read_text().split()
    assert options == ["--cpus-per-task=3", "--kill-on-bad-exit=0"]
    run = Run.load(tmp_path / "runs" / job)
    losses = run.values[0]["losses"]
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert run.values[1] == run.values[0]
    assert (tmp_path / "runs" / f"{job}.pt").exists()
    assert "step 10: loss" in run.logs[0]
