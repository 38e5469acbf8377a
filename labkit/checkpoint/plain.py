"""A sharded checkpoint: every rank saves its shard, then rank 0 saves a file that commits the step.

    rank 0   save shard 0 |         | save the commit: 2 shards |         | return
    rank 1   save shard 1 | barrier |                           | barrier | return

Layout: a flat float32 tensor, saved in shards of any length, loaded as n even shards on n ranks.
Wire: two barriers. Shards of earlier steps stay on the disk; only the commit is replaced.
Paper: Pillai et al., "All file systems are not created equal", OSDI 2014.
"""

from pathlib import Path
from typing import Any

import torch

from labkit.comm import Group


def save(disk: Any, folder: Path, step: int, data: bytes) -> None:
    """Save one state durably, then remove everything else in the folder."""
    unfinished, finished = folder / "unfinished", folder / f"step-{step:08d}"
    file = disk.create(unfinished)
    disk.write(file, data)
    disk.sync(file)
    disk.close(file)
    disk.rename(unfinished, finished)
    disk.sync_folder(folder)
    for path in folder.iterdir():
        if path != finished:
            disk.remove(path)


def load_newest(folder: Path) -> tuple[int, bytes] | None:
    """Return the step and the bytes of the newest whole state, or None."""
    finished = sorted(folder.glob("step-*"))
    if not finished:
        return None
    return int(finished[-1].name.removeprefix("step-")), finished[-1].read_bytes()


def save_shards(disk: Any, folder: Path, step: int, shard: torch.Tensor, group: Group) -> None:
    """Save this rank's shard of a step. Every rank calls it. disk: a `checkpoint.disk.Disk`."""
    disk.make_folder(folder / f"{step}" / f"{group.rank}")
    save(disk, folder / f"{step}" / f"{group.rank}", step, shard.numpy().tobytes())
    group.barrier()  # from here on every shard is on the disk
    if group.rank == 0:
        disk.make_folder(folder / "commit")
        save(disk, folder / "commit", step, str(group.size).encode())
    group.barrier()  # from here on the step is committed


def load_shard(folder: Path, group: Group) -> tuple[int, torch.Tensor] | None:
    """Return the newest committed step and this rank's shard of it, or None."""
    commit = load_newest(folder / "commit")
    if commit is None:
        return None
    step, size = commit[0], int(commit[1])
    files = [folder / f"{step}" / f"{rank}" / f"step-{step:08d}" for rank in range(size)]
    whole = bytearray().join(file.read_bytes() for file in files)
    return step, torch.frombuffer(whole, dtype=torch.float32).tensor_split(group.size)[group.rank]
