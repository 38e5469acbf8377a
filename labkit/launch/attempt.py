"""Which attempt of a job this is: torchrun starts ranks anew after a failure.

A folder of a Run belongs to one job: the file `job` in it has the job's name. Were it to count
attempts of several jobs, the first start of a new one would take up an old one's checkpoint.
"""

import os
from pathlib import Path

from labkit.launch.saved.folders import attempts

_VARIABLE = "LABKIT_ATTEMPT"


def attempt() -> int:
    """0 in the first start of a job, 1 after the first restart, and so on; 0 in `labkit.run`.

    All ranks of all hosts agree on it. A training loop that may be restarted asks for its
    checkpoint when this is above 0.
    """
    return int(os.environ.get(_VARIABLE, "0"))


def remember_attempt(number: int) -> None:
    """For the ranks that this process is about to fork."""
    os.environ[_VARIABLE] = str(number)


def objection(out: Path, job: str) -> str:
    """Why `job` cannot keep its attempts in the folder `out`; empty where it can."""
    if not attempts(out):
        return ""
    path = out / "job"
    theirs = path.read_text() if path.exists() else ""
    if theirs == job:
        return ""
    whose = f"job {theirs}" if theirs else "no job of torchrun, or of an older labkit"
    return (
        f"the folder {out} holds a Run of {whose}, and this is job {job}: name another folder "
        "with --out, or delete that one. (To go on with an interrupted job, give its --rdzv-id)"
    )


def claim(out: Path, job: str) -> None:
    """Write the job's name into the folder, which is made where it is missing."""
    out.mkdir(parents=True, exist_ok=True)
    half = out / f"job.{os.getpid()}.part"
    half.write_text(job)
    os.replace(half, out / "job")
