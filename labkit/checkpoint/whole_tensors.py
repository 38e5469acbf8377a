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
from labkit.checkpoint.loading import TORCH_DTYPES
from labkit.checkpoint.manifest import Manifest, files_here, named, step_of
from labkit.checkpoint.saving import memory_of


def read_tensors(
    folder: str | Path, step: int | None = None, prefix: str = ""
) -> dict[str, Tensor]:
    """The whole tensors of the newest complete checkpoint, or that of `step`, by name.

    prefix: of the names, which is taken away: "model." reads the parameters under their own names.
    FileNotFoundError where this host has no complete checkpoint.
    """
    for name in reversed(named(Path(folder))):
        path = Path(folder) / name
        manifest = Manifest.read(path)
        if step in (None, step_of(name)) and files_here(path, manifest) == manifest.files.keys():
            return _tensors(path, manifest, prefix)
    raise FileNotFoundError(
        f"{folder} has no complete checkpoint" + (f" of step {step}" if step else "")
    )


def _tensors(path: Path, manifest: Manifest, prefix: str) -> dict[str, Tensor]:
    found = {}
    for name, whole in manifest.tensors.items():
        if not name.startswith(prefix):
            continue
        tensor = torch.empty(whole.shape, dtype=TORCH_DTYPES[whole.dtype])
        memory, itemsize = memory_of(tensor), tensor.itemsize
        for stored in whole.pieces:
            file = os.open(path / stored.file, os.O_RDONLY)
            try:
                for here, there, numel in Extent.whole(whole.shape).overlaps(stored.extent):
                    begin = here * itemsize
                    place = memory[begin : begin + numel * itemsize]
                    read_into(file, stored.offset + there * itemsize, place)
            finally:
                os.close(file)
        found[name.removeprefix(prefix)] = tensor
    return found
