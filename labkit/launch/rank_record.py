"""What is kept of one rank: `rank-2.json`, with `rank-2.value` and `rank-2.log` beside it.

The JSON is written last and in one step, so a rank that has one has all three. Times are seconds
on the clock of its host (time.monotonic); `clock_s` is what that clock read when all ranks began,
which is how clocks of several hosts are laid over each other.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm import Site, Timeline
from labkit.launch import stored_value, timeline_json
from labkit.launch.stage import Stage

FORMAT = 1


@dataclass
class Failure:
    """How a rank ended that did not return."""

    type_name: str
    message: str
    traceback: str = ""
    site: Site | None = None
    exit_code: int | None = None
    is_consequence: bool = False
    """It failed because an operation did: another rank is the cause."""


@dataclass
class Record:
    """One rank of a run, as it is stored."""

    rank: int
    world_size: int
    device: str
    host: str
    stage: Stage
    position: str
    """Where it was at the end, in words."""
    clock_s: float
    timeline: Timeline = field(default_factory=Timeline)
    attempt: int = 0
    order: int = 0
    """Which rank of the run failed first, second..."""
    stack: str = ""
    failure: Failure | None = None
    memory: tuple[int, int] = (0, 0)
    """Bytes at the start and at the peak."""
    socket_bytes: int | None = None
    seconds: float = 0.0
    ready_seconds: float = 0.0
    value_kind: str = ""
    value: bytes = b""
    log: str = ""
    is_cut: bool = False
    """Timeline and log, too large to travel, stayed on the host of the rank."""

    def write(self, folder: Path) -> None:
        """Store the rank in `folder`, which is made where it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / f"rank-{self.rank}.value", self.value)
        _replace(folder / f"rank-{self.rank}.log", self.log.encode(errors="replace"))
        _replace(folder / f"rank-{self.rank}.json", json.dumps(self.as_json()).encode())

    def as_json(self) -> dict[str, Any]:
        """Everything but the value and the log."""
        data = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        data.pop("log")
        data["value"] = len(data.pop("value"))
        data["format"], data["stage"] = FORMAT, self.stage.value
        data["timeline"] = timeline_json.encode(self.timeline)
        data["failure"] = None if self.failure is None else dataclasses.asdict(self.failure)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], value: bytes, log: bytes) -> Record:
        """The rank again. ValueError, with the reason, for anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            its = data.get("format") if isinstance(data, dict) else None
            raise ValueError(
                f"it has format {its!r}, and this labkit reads format {FORMAT}; open it with the "
                "labkit that wrote it"
            )
        data = {name: item for name, item in data.items() if name != "format"}
        if type(data["rank"]) is not int or data["rank"] < 0:  # it becomes part of file names
            raise ValueError(f"{data['rank']!r} is no rank")
        if len(value) != data.pop("value"):
            raise ValueError("its .value file is cut short or not the one that belongs to it")
        failure = data.pop("failure")
        if failure is not None and failure["site"] is not None:
            failure["site"] = Site(**failure["site"])
        return cls(
            **{
                **data,
                "stage": Stage(data["stage"]),
                "timeline": timeline_json.decode(data["timeline"]),
                "memory": tuple(data["memory"]),
                "failure": None if failure is None else Failure(**failure),
                "value": value,
                "log": log.decode(errors="replace"),
            }
        )

    @classmethod
    def read(cls, path: Path) -> Record:
        """The rank whose JSON is at `path`. ValueError, naming the file, where it is damaged."""
        try:
            data = json.loads(path.read_bytes())
            value = path.with_suffix(".value").read_bytes()
            log = path.with_suffix(".log").read_bytes()
            return cls.from_json(data, value, log)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is cut short or damaged: {error}") from error
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OSError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def load_value(self, *, trust: bool) -> Any:
        """What the rank returned; see stored_value.py."""
        return stored_value.decode(self.value_kind, self.value, self.rank, trust=trust)


def _replace(path: Path, data: bytes) -> None:
    """The whole file or none: a reader on another host never sees half of one."""
    half = path.with_name(f"{path.name}.{os.getpid()}.part")
    half.write_bytes(data)
    os.replace(half, path)
