"""Whole tensors: those of a checkpoint, in this process, and one plain file into any layout.

    read_gpt("checkpoints")                                        GPT(...), trained
    read_tensors("checkpoints")                                    {"model.head.weight": ..., ...}
    safetensors.torch.save_file(read_tensors(..., prefix="model."), "model.safetensors")
    load_plain("model.safetensors", model, world)                  each rank reads its shards

For a look at a checkpoint, for a test, and for the file that programs of all kinds write and load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from labkit.checkpoint.contents import Contents
from labkit.checkpoint.disk import read_into
from labkit.checkpoint.extent import Extent
from labkit.checkpoint.loading import (
    DoesNotFit,
    Found,
    OpenFiles,
    empty_shard,
    fill,
    fitting_shards,
    plan_reads,
    require_as_saved,
)
from labkit.checkpoint.manifest import (
    Manifest,
    StoredShard,
    TensorRecord,
    files_here,
    finished_saves,
    step_of,
)
from labkit.checkpoint.plain_data import agreed, memory_of, result_or_error
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import GPT, GPTConfig


def read_tensors(
    folder: str | Path, step: int | None = None, prefix: str = ""
) -> dict[str, Tensor]:
    """The whole tensors of the newest complete checkpoint, or that of `step`, by name.

    prefix: of the names, which is taken away: "model." reads the parameters under their own names.
    FileNotFoundError where this host has no complete checkpoint; Damaged for other bytes than were
    saved.
    """
    path, manifest = complete_here(folder, step)
    names = [name for name in manifest.tensors if name.startswith(prefix)]
    tensors = whole_tensors(path, manifest, names)
    return {name.removeprefix(prefix): x for name, x in zip(names, tensors, strict=True)}


def read_gpt(folder: str | Path, step: int | None = None) -> GPT:
    """The GPT of the newest complete checkpoint, or that of `step`, trained in any layout.

    Save it with Checkpointer(..., extra={"config": config}): tensors do not tell the number of
    heads. DoesNotFit where the sizes were not saved, or are of another kind of model; other errors
    as of `read_tensors`.
    """
    _, manifest = complete_here(folder, step)
    sizes = manifest.values["extra"].get("config")
    if sizes is None:
        raise DoesNotFit(
            f"{folder} has no sizes of a GPT beside its tensors; save it with "
            'Checkpointer(..., extra={"config": config})'
        )
    tensors = read_tensors(folder, manifest.step, prefix="model.")
    model = GPT(GPTConfig(**sizes), dtype=next(iter(tensors.values())).dtype)
    parameters = dict(model.named_parameters())  # without the head, which is tied
    if tensors.keys() != parameters.keys():
        raise DoesNotFit(f"{folder} is of no GPT: {sorted(tensors.keys() ^ parameters.keys())}")
    model.load_state_dict(tensors, strict=False)
    return model


def load_plain(path: str | Path, model: nn.Module, group: Group | None = None) -> None:
    """Load one safetensors file of a whole model into a model of any layout. Every rank calls it.

    Each rank reads the bytes of its own shards. DoesNotFit, on every rank, for another model, and
    OSError for a file that is not there or not whole; then the model is as before.
    """
    path, group, contents = Path(path), chosen(group), Contents(model, None)
    manifest = agreed(result_or_error(lambda: _manifest_of_file(path)), OSError, group)
    shards, _ = fitting_shards(manifest, contents, group)
    found = Found(manifest, path.parent, {path.name: list(range(group.size))}, [], [])
    fill(found, shards, group)


def _manifest_of_file(path: Path) -> Manifest:
    """One shard for each tensor of a safetensors file, without a checksum. OSError."""
    nbytes, header = path.stat().st_size, dict[str, Any]()
    with path.open("rb") as file, suppress(ValueError):
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, nbytes)))
    header.pop("__metadata__", None)
    expected = max((8 + length + row["data_offsets"][1] for row in header.values()), default=0)
    if not 0 < expected <= nbytes:
        raise OSError(
            f"{path} has {nbytes} bytes, and its header tells of {expected or 'no tensors'}: it is "
            "no safetensors file, or a part of one; copy it again"
        )
    tensors = {}
    for name, row in header.items():
        extent = Extent.whole(tuple(row["shape"]))
        stored = StoredShard(path.name, extent, 8 + length + row["data_offsets"][0], 0)
        record = TensorRecord(row["dtype"], "elements", extent.shape, [stored])
        tensors[f"model.{name}"] = record
    return Manifest(0, "", 1, {}, tensors, {"optimizer": None, "settings": []})


def complete_here(folder: str | Path, step: int | None) -> tuple[Path, Manifest]:
    """The newest checkpoint that is complete on this host, or that of `step`; errors as above."""
    for name in reversed(finished_saves(Path(folder))):
        if step in (None, step_of(name)):
            path = Path(folder) / name
            manifest = Manifest.read(path)
            if files_here(path, manifest) == manifest.files.keys():
                return path, manifest
    which = "" if step is None else f" of step {step}"
    raise FileNotFoundError(f"{folder} has no complete checkpoint{which}")


def whole_tensors(path: Path, manifest: Manifest, names: Sequence[str]) -> list[Tensor]:
    """Some tensors of a checkpoint, whole. Damaged for other bytes than were saved."""
    shards = [empty_shard(name, manifest.tensors[name]) for name in names]
    memory = [memory_of(shard.tensor) for shard in shards]
    with OpenFiles(path) as files:
        for name in names:
            require_as_saved(files, name, manifest.tensors[name])
        for read in plan_reads(manifest, shards):
            place = memory[read.shard][read.at : read.at + read.nbytes]
            read_into(files[read.file], read.offset, place)
    return [shard.tensor for shard in shards]
