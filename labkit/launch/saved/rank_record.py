"""What is kept of one rank: `rank-2.json`, with `rank-2.value` and `rank-2.log` beside it.

The JSON is written last and in one step, so a rank that has one has all three. Times are seconds
on the clock of its host (time.monotonic); `clock_s` is what that clock read when all ranks began,
which is how clocks of several hosts are laid over each other.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm import Pace, Site, Timeline, Topology
from labkit.launch.ranks.stage import Stage
from labkit.launch.saved import stored_value, timeline_json, topology_json

FORMAT = 1
MOST_RANKS = 1_000_000


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
    topology: Topology | None = None
    pace: Pace | None = None
    """With a topology: messages received, and those that came late."""

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
        data.update(topology_json.encode(self.topology, self.pace))
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
        _require_numbers(data)
        if len(value) != data.pop("value"):
            raise ValueError("its .value file is cut short or not the one that belongs to it")
        failure = data.pop("failure")
        if failure is not None and failure["site"] is not None:
            failure["site"] = Site(**failure["site"])
        return cls(
            **{
                **data,
                **topology_json.decode(data),
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


def _require_numbers(data: dict[str, Any]) -> None:
    """Raise ValueError unless what is counted with later, and put into file names, are numbers."""
    rank, world_size = data["rank"], data["world_size"]
    if type(world_size) is not int or not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size is {world_size!r}, which is no number of ranks")
    if type(rank) is not int or not 0 <= rank < world_size:
        raise ValueError(f"{rank!r} is no rank of {world_size}")
    for name in ("clock_s", "seconds", "ready_seconds", "memory"):
        values = data[name] if name == "memory" else [data[name]]
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
            raise ValueError(f"{name} is {data[name]!r}, where finite numbers belong")


def _replace(path: Path, data: bytes) -> None:
    """The whole file or none: a reader on another host never sees half of one."""
    half = path.with_name(f"{path.name}.{os.getpid()}.part")
    half.write_bytes(data)
    os.replace(half, path)
