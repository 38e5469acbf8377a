"""A Run becomes a folder (saved_run.py says which files): all of it, or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from labkit.doctor.stage import Stage
from labkit.launch import payload
from labkit.launch.result import Run
from labkit.launch.saved import stored_value
from labkit.launch.saved.folders import folder_of, named_folder
from labkit.launch.saved.rank_record import Record


def save(run: Run, path: str | Path) -> Path:
    """Write `run` to a new folder, all of it or nothing. See `Run.save`."""
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


def _record_of(run: Run, rank: int) -> Record:
    """What is stored of one rank. TypeError, naming it, for a value that cannot be."""
    value = run.values[rank]
    try:
        kind, stored = stored_value.encode(payload.dump_value(value))
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
        pace=run.pace[rank] if run.topology else None,
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
