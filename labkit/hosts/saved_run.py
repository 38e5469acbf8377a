"""A Run as a folder: written by `Run.save` and by ranks under torchrun, opened by `Run.load`.

    runs/first/                  what --out names
      job                        the --rdzv-id: the folder is that job's alone
      attempt-0/                 the first start; attempt-1 is the first restart, and so on
        rank-0.json              where it ran, how it ended, its timeline (rank_record.py)
        rank-0.value             what it returned: plain data and tensors, or a pickle
        rank-0.log               what it printed
        verdict-of-host-0.json   after a failure: why, as that host saw it

Hosts may share the folder or have one each: each writes the files of its own ranks, and those of
all ranks are brought to rank 0's host at the end. Opening a folder runs no code from it, unless the
reader says `trust=True` and some value needs it (rank_record.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.comm import Timeline
from labkit.doctor.verdict import Stage
from labkit.hosts.attempts import RunVerdict, attempts, folder_of, named_folder, numbered
from labkit.hosts.rank_record import DAMAGED, LEFT_BEHIND, Record, encode_value
from labkit.launch import payload

_MOST_NAMED = 8


@dataclass(frozen=True)
class SavedRun:
    """The content of a run's folders. Each list has one entry per rank."""

    ranks: list[Record | None]
    timelines: list[Timeline]
    """On the clock that all hosts share, which is 0 when the first rank began the function."""
    values: list[Any]
    first: Record
    """The record of the lowest rank that has one."""


def load(paths: Sequence[str | Path], *, trust: bool = False, partial: bool = False) -> SavedRun:
    """Read one or more folders of one run. See `Run.load`."""
    if not paths:
        raise ValueError("Run.load() needs the folder of a run, or several of one run's hosts")
    folders = _folders([named_folder(path) for path in paths])
    records = _records(folders)
    world_size = next(iter(records.values())).world_size
    _check_complete(records, folders, partial)
    ranks = [records.get(rank) for rank in range(world_size)]
    zero_s = min((_start_s(record) for record in records.values()), default=0.0)
    timelines = [Timeline() if each is None else _laid_over(each, zero_s) for each in ranks]
    verdict = RunVerdict.find(folders)
    if verdict is not None and not partial:
        raise verdict.error(ranks, timelines)
    values = [_value(record, trust, partial) for record in ranks]
    return SavedRun(ranks, timelines, values, next(iter(records.values())))


def _folders(paths: Sequence[Path]) -> list[Path]:
    """The last attempt in each path."""
    for path in paths:
        if not attempts(path):
            raise FileNotFoundError(
                f"{path} holds no run: there is no attempt-0 in it. Give the folder that --out or "
                "Run.save named"
            )
    last = max(attempts(path)[-1] for path in paths)
    return [folder for path in paths if (folder := folder_of(path, last)).is_dir()]


def _records(folders: Sequence[Path]) -> dict[int, Record]:
    """Return the records that exist, by rank."""
    found: dict[int, Record] = {}
    for folder in folders:
        for path in numbered(folder, "rank-*.json"):
            record = Record.read(path)
            known = found.get(record.rank)
            if known is None or known.is_cut or known.value_kind in (LEFT_BEHIND, DAMAGED):
                found[record.rank] = record
    if not found:
        raise FileNotFoundError(f"no rank has left a record in {', '.join(map(str, folders))}")
    runs = {(record.world_size, record.device) for record in found.values()}
    if len(runs) > 1 or max(found) >= next(iter(runs))[0]:
        raise ValueError(
            f"these folders are not of one run: their ranks say (world_size, device) {sorted(runs)}"
        )
    return dict(sorted(found.items()))


def _check_complete(records: dict[int, Record], folders: Sequence[Path], partial: bool) -> None:
    first = next(iter(records.values()))
    world_size = first.world_size
    missing = [rank for rank in range(world_size) if rank not in records]
    if missing and not partial and RunVerdict.find(folders) is None:
        named = ", ".join(map(str, missing[:_MOST_NAMED]))
        if len(missing) > _MOST_NAMED:
            named += f" and {len(missing) - _MOST_NAMED} others"
        why = "The job was ended before they could write"
        if first.num_hosts != 1:
            why = (
                "Either the job was ended before they could write, or another host has them: "
                "Run.load(folder, its_folder)"
            )
        raise ValueError(
            f"of the {world_size} ranks of this run, these are missing here: {named}. {why}. "
            "To look at the others alone: "
            "Run.load(..., partial=True)"
        )


def _start_s(record: Record) -> float:
    return record.timeline.start_s - record.clock_s


def _laid_over(record: Record, zero_s: float) -> Timeline:
    return record.timeline.shifted(record.clock_s + zero_s)


def _value(record: Record | None, trust: bool, partial: bool) -> Any:
    if record is None or record.stage is not Stage.RETURNED:
        return None
    try:
        return record.load_value(trust=trust)
    except ValueError:  # not to be trusted, damaged, or on another host
        if partial:
            return None
        raise


def save(run: Any, path: str | Path) -> Path:
    """Write a `Run` to a new folder, all of it or nothing. See `Run.save`."""
    path = named_folder(path)
    records = [_record_of(run, rank) for rank in range(run.world_size)]
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"{path} exists already; choose a name that is not taken")
        _write_all(records, path)
    except FileExistsError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise OSError(
            f"{path}: the run cannot be saved there ({error}), and nothing of it was; name a new "
            "folder in one that you may write to"
        ) from error
    return path


def _record_of(run: Any, rank: int) -> Record:
    """Return what is stored of one rank. TypeError, naming it, for a value that cannot be."""
    value = run.values[rank]
    try:
        kind, stored = encode_value(payload.dump_value(value))
    except Exception as error:
        raise TypeError(
            f"what rank {rank} returned, a {type(value).__name__}, cannot be saved: {error}. Put "
            f"plain data or tensors in its place, run.values[{rank}] = ..., and save again; "
            "nothing was written"
        ) from error
    return Record(
        rank=rank,
        world_size=run.world_size,
        device=run.device,
        host=socket.gethostname(),
        stage=Stage.RETURNED,
        position="returned",
        clock_s=0.0,
        timeline=run.timeline[rank],
        memory=(run.memory[rank].start_bytes, run.memory[rank].peak_bytes),
        socket_bytes=run.traffic[rank].socket_bytes,
        seconds=run.seconds,
        ready_seconds=run.ready_seconds,
        value_kind=kind,
        value=stored,
        log=run.logs[rank],
        topology=run.topology,
        lateness=run.lateness[rank] if run.topology else None,
    )


def _write_all(records: Sequence[Record], path: Path) -> None:
    """The attempt appears under its name when it is whole. Nothing is left of one that is not."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    half = path / f"attempt-0.{os.getpid()}.part"
    try:
        for record in records:
            record.write(half)
        half.rename(folder_of(path, 0))
    except BaseException:  # Stop as well
        shutil.rmtree(half, ignore_errors=True)
        for folder in new:
            with contextlib.suppress(OSError):  # it was not made, or somebody else uses it
                folder.rmdir()
        raise
