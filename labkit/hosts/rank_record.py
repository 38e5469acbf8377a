"""The record of one rank: `rank-2.json`, with `rank-2.value` and `rank-2.log` beside it.

The JSON is written last and in one step, so a rank that has one has all three. Times are seconds
on the clock of its host (time.monotonic); `clock_s` is what that clock read when all ranks began,
which is how clocks of several hosts are laid over each other.

A value may be opened by somebody else. Plain data and tensors are stored so that
torch.load(weights_only=True) reads them, which runs no code from the file. Other objects need
pickle, and a pickle can run any code: those are read only where the reader says that the folder is
to be trusted.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from labkit.comm import FatTree, Lateness, Site, Timeline, Topology
from labkit.doctor.verdict import Stage
from labkit.hosts import typed_json

FORMAT = 3
MOST_RANKS = 100_000


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
    """Where it was at the end, in words, the line included."""
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
    place: str = ""
    """The line that `position` names, under torchrun; empty where there is none."""
    num_hosts: int = 0
    """The number of hosts in a torchrun job; 0 elsewhere."""
    topology: FatTree | Topology | None = None
    lateness: Lateness | None = None
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
        data["timeline"] = typed_json.encode_timeline(self.timeline)
        for name in ("failure", "topology", "lateness"):
            if data[name] is not None:
                data[name] = dataclasses.asdict(data[name])
        return data

    @classmethod
    def from_json(cls, data: Any, value: bytes, log: bytes) -> Record:
        """The rank again. ValueError, with the reason, for anything else.

        A value that is not the one whose length the JSON tells is left to `load_value`: all else
        of the rank may be whole.
        """
        its = data.get("format") if isinstance(data, dict) else None
        if its != FORMAT:
            raise ValueError(
                f"it has format {its!r:.40}, and this labkit reads format {FORMAT}; "
                "open it with the labkit that wrote it"
            )
        data = {name: item for name, item in data.items() if name != "format"}
        is_its_own = data.get("value") == len(value)
        with typed_json.damage_named():
            timeline = typed_json.decode_timeline(data["timeline"])
            data.update(timeline=timeline, value=value, log=log.decode(errors="replace"))
            record: Record = typed_json.fitted(cls, data)
        if not 0 <= record.rank < record.world_size <= MOST_RANKS:
            raise ValueError(f"{record.rank} is no rank of {record.world_size}")
        return record if is_its_own else dataclasses.replace(record, value_kind=DAMAGED)

    @classmethod
    def read(cls, path: Path) -> Record:
        """The rank whose JSON is at `path`. ValueError, naming the file, where it is damaged."""
        try:
            data = typed_json.parsed(path.read_bytes())
            beside = path.with_suffix(".value")
            value = beside.read_bytes() if beside.exists() else b""
            return cls.from_json(data, value, path.with_suffix(".log").read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def load_value(self, *, trust: bool) -> Any:
        """The value that the rank returned."""
        return decode_value(self.value_kind, self.value, self.rank, trust=trust)


def _replace(path: Path, data: bytes) -> None:
    """The whole file or none: a reader on another host never sees half of one."""
    half = path.with_name(f"{path.name}.{os.getpid()}.part")
    half.write_bytes(data)
    os.replace(half, path)


SAFE, PICKLE, LEFT_BEHIND, DAMAGED = "tensors", "pickle", "left on its host", "damaged"

_THE_REST = "To look at the rest: Run.load(..., partial=True)"


class UntrustedValue(ValueError):
    """A value that only pickle restores, in a folder that the reader has not said to trust."""


def encode_value(dumped: bytes) -> tuple[str, bytes]:
    """The kind and the bytes to store, from what `payload.dump_value` made."""
    try:
        buffer = io.BytesIO()
        torch.save(pickle.loads(dumped), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # some class that weights_only does not know, or that is not known here
        return PICKLE, dumped
    return SAFE, buffer.getvalue()


def decode_value(kind: str, data: bytes, rank: int, *, trust: bool) -> Any:
    """The value of `rank`. Raises UntrustedValue for a pickle without `trust`, and ValueError."""
    if kind == LEFT_BEHIND:
        raise ValueError(
            f"what rank {rank} returned was too large to travel, and stayed in the folder of its "
            "own host; name that folder too: Run.load(folder, its_folder)"
        )
    if kind == DAMAGED:
        raise ValueError(
            f"what rank {rank} returned cannot be read: rank-{rank}.value is missing, cut short, "
            f"or not the one that belongs to rank-{rank}.json. {_THE_REST}"
        )
    if kind == PICKLE and not trust:
        raise UntrustedValue(
            f"what rank {rank} returned is stored as a pickle, and reading a pickle can run any "
            "code. If you know who wrote this folder: Run.load(..., trust=True). "
            f"{_THE_REST}"
        )
    try:
        if kind == PICKLE:
            return pickle.loads(data)
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise ValueError(
            f"what rank {rank} returned cannot be read here, from rank-{rank}.value: {reason}. "
            f"{_THE_REST}"
        ) from error
