"""Why a run on several hosts failed, as one host saw it: `verdict-of-host-0.json`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.comm import Site, Timeline
from labkit.doctor.verdict import Fault, Verdict
from labkit.launch.cluster import typed_json
from labkit.launch.cluster.attempts import numbered
from labkit.launch.cluster.rank_record import FORMAT, Record
from labkit.launch.errors import Deadlock, Mismatch, RankError, RunError

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
    """What it raised; "ProcessDied" where its process or its host is gone."""
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
            return cls.from_bytes(typed_json.content(path))
        except ValueError as error:
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
