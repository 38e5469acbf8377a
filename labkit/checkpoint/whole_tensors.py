"""Checkpoints without ranks: all tensors of one, whole, in this process.

    read_tensors("checkpoints")                                    {"model.head.weight": ..., ...}
    safetensors.torch.save_file(read_tensors(..., prefix="model."), "model.safetensors")

For a look at a checkpoint, for a test, and for the one plain file that other programs load.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from labkit.checkpoint.disk import read_into
from labkit.checkpoint.extent import Extent
from labkit.checkpoint.manifest import Manifest, files_here, finished_saves, step_of
from labkit.checkpoint.plain_data import memory_of
from labkit.checkpoint.saving import TORCH_DTYPES


def read_tensors(
    folder: str | Path, step: int | None = None, prefix: str = ""
) -> dict[str, Tensor]:
    """The whole tensors of the newest complete checkpoint, or that of `step`, by name.

    prefix: of the names, which is taken away: "model." reads the parameters under their own names.
    FileNotFoundError where this host has no complete checkpoint.
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
    found = {}
    for name, record in manifest.tensors.items():
        if not name.startswith(prefix):
            continue
        tensor = torch.empty(record.shape, dtype=TORCH_DTYPES[record.dtype])
        memory, itemsize = memory_of(tensor), tensor.itemsize
        for stored in record.shards:
            file = os.open(path / stored.file, os.O_RDONLY)
            try:
                for here, there, numel in Extent.whole(record.shape).overlaps(stored.extent):
                    begin = here * itemsize
                    place = memory[begin : begin + numel * itemsize]
                    read_into(file, stored.offset + there * itemsize, place)
            finally:
                os.close(file)
        found[name.removeprefix(prefix)] = tensor
    return found
