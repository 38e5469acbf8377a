"""Checkpoints without ranks: all tensors of one, whole, in this process.

    read_tensors("checkpoints")                                    {"model.head.weight": ..., ...}
    safetensors.torch.save_file(read_tensors(..., prefix="model."), "model.safetensors")

For a look at a checkpoint, for a test, and for the one plain file that other programs load.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from labkit.checkpoint.disk import read_into
from labkit.checkpoint.loading import OpenFiles, empty_shard, plan_reads, require_as_saved
from labkit.checkpoint.manifest import Manifest, files_here, finished_saves, step_of
from labkit.checkpoint.plain_data import memory_of


def read_tensors(
    folder: str | Path, step: int | None = None, prefix: str = ""
) -> dict[str, Tensor]:
    """The whole tensors of the newest complete checkpoint, or that of `step`, by name.

    prefix: of the names, which is taken away: "model." reads the parameters under their own names.
    FileNotFoundError where this host has no complete checkpoint; Damaged for other bytes than were
    saved.
    """
    for name in reversed(finished_saves(Path(folder))):
        if step in (None, step_of(name)):
            path = Path(folder) / name
            manifest = Manifest.read(path)
            if files_here(path, manifest) == manifest.files.keys():
                return _tensors(path, manifest, prefix)
    which = "" if step is None else f" of step {step}"
    raise FileNotFoundError(f"{folder} has no complete checkpoint{which}")


def _tensors(path: Path, manifest: Manifest, prefix: str) -> dict[str, Tensor]:
    names = [name for name in manifest.tensors if name.startswith(prefix)]
    shards = [empty_shard(name, manifest.tensors[name]) for name in names]
    memory = [memory_of(shard.tensor) for shard in shards]
    with OpenFiles(path) as files:
        for name in names:
            require_as_saved(files, name, manifest.tensors[name])
        for read in plan_reads(manifest, shards):
            place = memory[read.shard][read.at : read.at + read.nbytes]
            read_into(files[read.file], read.offset, place)
    return {shard.name.removeprefix(prefix): shard.tensor for shard in shards}
