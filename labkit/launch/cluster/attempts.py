"""The folder of a run and those of its attempts: torchrun starts ranks anew after a failure.

A folder of a Run belongs to one job: the file `job` in it has the job's name. Were it to count
attempts of several jobs, the first start of a new one would take up an old one's checkpoint.
"""

from __future__ import annotations

import os
import re
import reprlib
import uuid
from pathlib import Path

from labkit.doctor.stage import Stage
from labkit.launch.cluster.rank_record import Record

_VARIABLE = "LABKIT_ATTEMPT"
ONE_MACHINE = "--nnodes=1 --rdzv-id=NAME --rdzv-backend=c10d --rdzv-endpoint=localhost:29500"
"""What torchrun is told instead of --standalone, for a job that can go on."""


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
    text = (
        f"the folder {out} holds a Run of {whose}, and this is job {job}: name another folder "
        "with --out, or delete that one. (To go on with an interrupted job, give its --rdzv-id"
    )
    if _is_made_up(job):
        text += (
            ". torchrun --standalone makes up a new id at each start, so that nothing goes on: "
            f"give {ONE_MACHINE} in its place"
        )
    return text + ")"


def _is_made_up(job: str) -> bool:
    """Whether it is an id of torchrun --standalone."""
    try:
        return str(uuid.UUID(job)) == job
    except ValueError:
        return False


def said(number: int, out: Path, shown: str, job: str) -> str:
    """What rank 0 says of an attempt: that it is not the first, and whether that can be meant.

    shown: the folder `out` as people call it.
    """
    if number == 0:
        return ""
    text = f"labkit: attempt {number} of job {job}, in {shown}"
    if _was_good(folder_of(out, number - 1)):
        text += (
            f"\nlabkit: attempt {number - 1} was complete and good; to start over, use another "
            f"--rdzv-id and --out, or delete {shown}"
        )
    return text


def _was_good(folder: Path) -> bool:
    """Whether all ranks have returned, and nobody has said anything against it."""
    if not folder.is_dir() or numbered(folder, "verdict-of-host-*.json"):
        return False
    try:
        records = [Record.read(path) for path in numbered(folder, "rank-*.json")]
    except ValueError:  # it is damaged, which is not to be told here
        return False
    has_all = bool(records) and len(records) == records[0].world_size
    return has_all and all(record.stage is Stage.RETURNED for record in records)


def claim(out: Path, job: str) -> None:
    """Write the job's name into the folder, which is made where it is missing."""
    out.mkdir(parents=True, exist_ok=True)
    half = out / f"job.{os.getpid()}.part"
    half.write_text(job)
    os.replace(half, out / "job")


_NUMBER = "(0|[1-9][0-9]*)"  # as labkit writes it: no other digits, no zeros before it


def attempts(path: Path) -> list[int]:
    """The numbers of the attempts in a folder, in order."""
    if not os.path.isdir(path):  # False, and no error, for a name that nothing can have
        return []
    found = (each for each in numbered(path, "attempt-*") if each.is_dir())
    return sorted(int(each.name.removeprefix("attempt-")) for each in found)


def numbered(folder: Path, pattern: str) -> list[Path]:
    """What is in a folder whose name is `pattern` with a number for its *: nobody else's files."""
    known = re.compile(re.escape(pattern).replace(r"\*", _NUMBER))
    return [each for each in sorted(folder.iterdir()) if known.fullmatch(each.name)]


def folder_of(path: Path, attempt: int) -> Path:
    """Where the files of one attempt are."""
    return path / f"attempt-{attempt}"


def named_folder(path: object) -> Path:
    """What a caller has named. TypeError for what is no name."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    several = "; several folders are given one by one: Run.load(*folders)"
    advice = "give the name of a folder, such as 'runs/first'"
    advice += several if isinstance(path, (list, tuple)) else ""
    raise TypeError(f"path={reprlib.repr(path)}: {advice}")
