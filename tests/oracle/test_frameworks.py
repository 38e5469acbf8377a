"""examples/frameworks: torch's own four equal one process, and the DDP script resumes."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "frameworks"
EPOCHS = 3


@pytest.fixture(scope="module")
def oracle():
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(str(FOLDER))
        from job import Job

        yield Job("", epochs=EPOCHS).oracle()


def launch(file, out, *options):
    """Start a file under torchrun on two ranks, until it ends."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(FOLDER / file)]
    subprocess.run(
        [*command, "--out", str(out), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=600,
        capture_output=True,
    )


def losses(out):
    """Return the mean over the ranks that have a loss, for each step."""
    records = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]
    both = zip(*(each["losses"] for each in records), strict=True)
    return [statistics.fmean(x for x in pair if x is not None) for pair in both]


def test_ddp_fsdp2_tensor_parallel_and_pipelining_equal_one_process(tmp_path, oracle):
    launch("torchs_own.py", tmp_path, "--accumulate", "2", "--epochs", str(EPOCHS))
    names = sorted(folder.name for folder in tmp_path.iterdir())
    assert names == ["ddp", "fsdp2", "pipelining", "tensor_parallel"]
    for name in names:
        assert losses(tmp_path / name) == pytest.approx(oracle, abs=2e-5), name


def test_the_ddp_script_goes_on_from_its_checkpoint(tmp_path, oracle):
    launch("ddp.py", tmp_path, "--epochs", "1")
    assert losses(tmp_path) == pytest.approx(oracle[:4], abs=2e-5)
    launch("ddp.py", tmp_path, "--epochs", "2")
    assert losses(tmp_path) == pytest.approx(oracle[4:8], abs=2e-5)
    assert not (tmp_path / "checkpoint.part").exists()
