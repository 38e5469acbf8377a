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
reader says `trust=True` and some value needs it (stored_value.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.comm import Pace, Timeline
from labkit.doctor.stage import Stage
from labkit.launch.hosts.verdict_record import RunVerdict
from labkit.launch.ranks.memory import Memory
from labkit.launch.result import Run, Traffic
from labkit.launch.saved.folders import attempts, folder_of, named_folder, numbered
from labkit.launch.saved.rank_record import Record
from labkit.launch.saved.stored_value import DAMAGED, LEFT_BEHIND

_MOST_NAMED = 8


def load(paths: Sequence[str | Path], *, trust: bool = False, partial: bool = False) -> Run:
    """The Run in one or more folders of one run. See `Run.load`."""
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
    first = next(iter(records.values()))
    return Run(
        world_size=world_size,
        device=first.device,
        values=[_value(record, trust, partial) for record in ranks],
        logs=["" if record is None else record.log for record in ranks],
        timeline=timelines,
        traffic=[
            Traffic.of(timeline.operations, None if record is None else record.socket_bytes)
            for record, timeline in zip(ranks, timelines, strict=True)
        ],
        memory=[Memory(0, 0) if record is None else Memory(*record.memory) for record in ranks],
        seconds=first.seconds,
        ready_seconds=first.ready_seconds,
        topology=first.topology,
        pace=[(record and record.pace) or Pace() for record in ranks] if first.topology else [],
    )


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
    """What there is, by rank."""
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
    """On the clock that all hosts share, which is 0 when the first rank began the function."""
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
