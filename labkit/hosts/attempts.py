"""The folder of a run, those of its attempts, and the verdict that an attempt leaves.

torchrun starts ranks again after a failure: each start is an attempt, with a folder of its own. A
folder of a Run belongs to one job: the file `job` in it has the job's name. If it counted attempts
of several jobs, the first start of a new one would continue from an old one's checkpoint.

`verdict-of-host-0.json` says why an attempt failed, as that host saw it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.comm import Site, Timeline
from labkit.doctor.verdict import Fault, Stage, Verdict
from labkit.hosts import typed_json
from labkit.hosts.rank_record import FORMAT, Record
from labkit.launch.errors import Deadlock, Mismatch, RankError, RunError


def claim(out: Path, job: str) -> None:
    """Write the job's name into the folder, which is made where it is missing."""
    out.mkdir(parents=True, exist_ok=True)
    half = out / f"job.{os.getpid()}.part"
    half.write_text(job)
    os.replace(half, out / "job")


_NUMBER = "(0|[1-9][0-9]*)"  # as labkit writes it: no other digits, no zeros before it


def attempts(path: Path) -> list[int]:
    """Return the numbers of the attempts in a folder, in order."""
    if not os.path.isdir(path):  # False, and no error, for a name that nothing can have
        return []
    found = (each for each in numbered(path, "attempt-*") if each.is_dir())
    return sorted(int(each.name.removeprefix("attempt-")) for each in found)


def numbered(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder whose name is `pattern` with a number for its *."""
    known = re.compile(re.escape(pattern).replace(r"\*", _NUMBER))
    return [each for each in sorted(folder.iterdir()) if known.fullmatch(each.name)]


def folder_of(path: Path, attempt: int) -> Path:
    """Return the folder of one attempt."""
    return path / f"attempt-{attempt}"


def named_folder(path: object) -> Path:
    """Return the folder that a caller has named. TypeError for what is no name."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    several = "; several folders are given one by one: Run.load(*folders)"
    advice = "give the name of a folder, such as 'runs/first'"
    advice += several if isinstance(path, (list, tuple)) else ""
    raise TypeError(f"path={reprlib.repr(path)}: {advice}")


ONE_MACHINE = "--nnodes=1 --rdzv-id=NAME --rdzv-backend=c10d --rdzv-endpoint=localhost:29500"
"""Options of torchrun instead of --standalone, for a job that can go on."""


def objection(out: Path, job: str) -> str:
    """Return why `job` cannot keep its attempts in the folder `out`, or an empty text."""
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
    """Return whether it is an id of torchrun --standalone."""
    try:
        return str(uuid.UUID(job)) == job
    except ValueError:
        return False


def attempt_message(number: int, out: Path, shown: str, job: str) -> str:
    """Return what rank 0 prints of an attempt that is not the first.

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
    """Return whether all ranks have returned and there is no verdict against it."""
    if not folder.is_dir() or numbered(folder, "verdict-of-host-*.json"):
        return False
    try:
        records = [Record.read(path) for path in numbered(folder, "rank-*.json")]
    except ValueError:  # it is damaged, which is reported elsewhere
        return False
    has_all = bool(records) and len(records) == records[0].world_size
    return has_all and all(record.stage is Stage.RETURNED for record in records)


UNCONFIRMED = "Unconfirmed"
"""The kind of a verdict on a run that may be good: this host's ranks have returned, but no other
host is left to ask."""
_ERRORS = {each.__name__: each for each in (RankError, Mismatch, Deadlock)}


@dataclass
class RunVerdict:
    """The cause, and what followed from it."""

    text: str
    """All of it, for people."""
    kind: str = "RunError"
    """The error that `labkit.run` raises for it: RankError, Mismatch, Deadlock or RunError.
    "Unconfirmed" is a RunError too."""
    rank: int = -1
    """The rank that is the cause; -1 where none can be named."""
    exception_type: str = ""
    """The name of its error; "ProcessDied" where its process or its host is gone."""
    traceback: str = ""
    site: Site | None = None
    exit_code: int | None = None
    consequences: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    """Ranks that are gone without a word."""
    is_proof: bool = False
    """Ranks waited in vain, and the run was ended for it."""

    @classmethod
    def of_proof(cls, verdict: Verdict) -> RunVerdict:
        """That a run cannot end any more, as the doctor found."""
        kind = Mismatch if verdict.fault is Fault.MISMATCH else Deadlock
        return cls(str(verdict), kind=kind.__name__, is_proof=True)

    def write(self, folder: Path, host_number: int) -> bool:
        """Store it among the records of the attempt; False where this host has one: that stays."""
        folder.mkdir(parents=True, exist_ok=True)
        name = self.file_name(host_number)
        half = folder / f"{name}.{os.getpid()}.part"
        half.write_bytes(self.as_bytes())
        try:
            os.link(half, folder / name)  # unlike a rename, it replaces nothing
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(half, folder / name)
        finally:
            half.unlink(missing_ok=True)
        return True

    @staticmethod
    def file_name(host_number: int) -> str:
        """One for each host: they may share the folder."""
        return f"verdict-of-host-{host_number}.json"

    def as_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, note: bytes) -> RunVerdict:
        """The verdict again. ValueError, with the reason, for anything else."""
        data = typed_json.parsed(note)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"it has another format than {FORMAT}, which this labkit reads")
        with typed_json.damage_named():
            verdict: RunVerdict = typed_json.fitted(cls, data)
        return verdict

    @classmethod
    def find(cls, folders: Sequence[Path]) -> RunVerdict | None:
        """The verdict of the lowest host that wrote one. ValueError where it is damaged."""
        paths = [each for folder in folders for each in numbered(folder, "verdict-of-host-*.json")]
        if not paths:
            return None
        path = min(paths, key=lambda path: (len(path.name), path.name))
        try:
            return cls.from_bytes(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def error(self, ranks: Sequence[Record | None], timelines: Sequence[Timeline]) -> RunError:
        """The error that the same failure has in `labkit.run`, with the evidence by rank."""
        error = _ERRORS.get(self.kind, RunError)(
            self.text,
            timeline=timelines,
            logs=["" if rank is None else rank.log for rank in ranks],
            positions=["is gone" if rank is None else rank.position for rank in ranks],
            stacks=["" if rank is None else rank.stack for rank in ranks],
        )
        if isinstance(error, RankError):
            error.rank, error.exception_type = self.rank, self.exception_type
            error.traceback, error.site = self.traceback, self.site
            error.exit_code, error.consequences = self.exit_code, self.consequences
        return error
