"""Read whole tensors of a checkpoint in one process; load one plain file into any layout.

    read_gpt("checkpoints")                                        GPT(...), trained
    read_tensors("checkpoints")                                    {"model.head.weight": ..., ...}
    safetensors.torch.save_file(read_tensors(..., prefix="model."), "model.safetensors")
    load_plain("model.safetensors", model, world)                  each rank reads its shards

These are for inspection, for tests, and for safetensors files that other programs write and load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checkpoint.contents import Contents
from labkit.checkpoint.disk import read_into
from labkit.checkpoint.loading import (
    FoundCheckpoint,
    OpenFiles,
    empty_shard,
    fill,
    fitting_shards,
    plan_reads,
    require_as_saved,
)
from labkit.checkpoint.manifest import (
    MOST_BYTES,
    TORCH_DTYPES,
    Damaged,
    DoesNotFit,
    Manifest,
    StoredShard,
    TensorRecord,
    files_here,
    finished_saves,
    require_each_element_once,
    require_own_bytes,
    require_shape,
    step_of,
)
from labkit.checkpoint.plain_data import agreed, memory_of, result_or_error
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import GPT, GPTConfig, parameter_shapes
from labkit.shards import Extent

MOST_CONTEXT = 1 << 24
"""In tokens. With rotary positions the parameters do not bound the context."""


def read_tensors(
    folder: str | Path, step: int | None = None, prefix: str = ""
) -> dict[str, Tensor]:
    """Return the whole tensors of the newest complete checkpoint, or that of `step`, by name.

    prefix: of the names, and removed from them: "model." reads the parameters by their own names.
    FileNotFoundError if this host has no complete checkpoint; Damaged if bytes were changed.
    """
    path, manifest = complete_here(folder, step)
    names = [name for name in manifest.tensors if name.startswith(prefix)]
    tensors = whole_tensors(path, manifest, names)
    return {name.removeprefix(prefix): x for name, x in zip(names, tensors, strict=True)}


def read_gpt(folder: str | Path, step: int | None = None) -> GPT:
    """Return the GPT of the newest complete checkpoint, or that of `step`, trained in any layout.

    Save it with Checkpointer(..., extra={"config": config}): tensors do not show the number of
    heads. DoesNotFit if the sizes were not saved, or are of another kind of model; other errors
    as in `read_tensors`.
    """
    path, manifest = complete_here(folder, step)
    sizes = manifest.values["extra"].get("config")
    if sizes is None:
        raise DoesNotFit(
            f"{folder} has no sizes of a GPT beside its tensors; save it with "
            'Checkpointer(..., extra={"config": config})'
        )
    try:
        config = GPTConfig(**sizes)
    except (TypeError, ValueError) as error:
        raise DoesNotFit(f"{path} has sizes {sizes!r:.200}, which are of no GPT: {error}") from None
    dtype = _require_gpt(path, manifest, config)
    tensors = read_tensors(folder, manifest.step, prefix="model.")
    model = GPT(config, dtype=dtype)
    model.load_state_dict(tensors, strict=False)  # without the head, which is tied
    return model


def _require_gpt(path: Path, manifest: Manifest, config: GPTConfig) -> torch.dtype:
    """Return the dtype of all parameters. DoesNotFit if they are not those of such a GPT.

    No module is made for this check: sizes that a stranger wrote may be of any length.
    """
    prefix = "model."
    saved = {
        name.removeprefix(prefix): record
        for name, record in manifest.tensors.items()
        if name.startswith(prefix)
    }
    num_layers, longest = config.num_layers, len(saved)
    if num_layers > longest:
        raise DoesNotFit(f"{path} has num_layers={num_layers} and {longest} tensors of a model")
    if config.context > MOST_CONTEXT:
        raise DoesNotFit(f"{path} has context={config.context}, more than {MOST_CONTEXT}")
    shapes = parameter_shapes(config)
    if other := sorted(saved.keys() ^ shapes.keys()):
        raise DoesNotFit(f"{path} is of no GPT: of {config}, {other[0]} is too many or missing")
    for name, record in saved.items():
        if record.shape != shapes[name]:
            raise DoesNotFit(
                f"{path} has {name} of shape {record.shape}, and {config} has {shapes[name]}"
            )
    dtypes = {TORCH_DTYPES[record.dtype] for record in saved.values()}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        raise DoesNotFit(f"{path} has parameters of {', '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()


def load_plain(path: str | Path, model: nn.Module, group: Group | None = None) -> None:
    """Load one safetensors file of a whole model into a model of any layout. Every rank calls it.

    Each rank reads the bytes of its own shards. Errors come on every rank, and leave the model as
    it was: DoesNotFit for another model, OSError for a file that is missing or not whole, Damaged
    if its header does not match its bytes.
    """
    path, group, contents = Path(path), chosen(group), Contents(model, None)
    header = agreed(result_or_error(lambda: _header_of(path)), OSError, group)
    agreed(result_or_error(lambda: _require_dtypes(path, header[1])), DoesNotFit, group)
    manifest = agreed(result_or_error(lambda: _manifest_of_file(path, *header)), Damaged, group)
    shards, _ = fitting_shards(manifest, contents, group)
    found = FoundCheckpoint(manifest, path.parent, {path.name: list(range(group.size))}, [], [])
    fill(found, shards, group)


def _header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the offset of a safetensors file's tensors, and its header. OSError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'no file' if path.exists() else 'not there'}")
    nbytes, length, header = path.stat().st_size, 0, None
    with path.open("rb") as file, suppress(ValueError, RecursionError):
        length = int.from_bytes(file.read(8), "little")
        if length <= min(nbytes - 8, MOST_BYTES):
            header = json.loads(file.read(length))
    rows = header.values() if isinstance(header, dict) else []
    offsets = [row.get("data_offsets") for row in rows if isinstance(row, dict)]
    ends = [each[1] for each in offsets if isinstance(each, list) and len(each) == 2]
    end = max((each for each in ends if type(each) is int), default=0)
    if not isinstance(header, dict) or header.keys() <= {"__metadata__"}:
        end = nbytes
    if 8 + length + end > nbytes:
        raise OSError(
            f"{path} has {nbytes} bytes, and the {length} of its header tell of {end} more: it is "
            "no safetensors file, or a part of one; copy it again"
        )
    assert isinstance(header, dict)
    header.pop("__metadata__", None)
    return 8 + length, header


def _require_dtypes(path: Path, header: dict[str, Any]) -> None:
    """Raise DoesNotFit for a dtype that safetensors has and this lab does not."""
    for name, row in header.items():
        dtype = row.get("dtype") if isinstance(row, dict) else None
        if isinstance(dtype, str) and dtype not in TORCH_DTYPES:
            raise DoesNotFit(f"{path}: {name!r:.200} is {dtype:.80}, not {', '.join(TORCH_DTYPES)}")


def _manifest_of_file(path: Path, begin: int, header: dict[str, Any]) -> Manifest:
    """Return a manifest with one shard per tensor of the file, without checksums. Damaged.

    Tensors must share no bytes, as the format demands.
    """
    nbytes, tensors = path.stat().st_size, {}
    for name, row in header.items():
        where = f"{path}: {name!r:.200}"
        try:
            dtype, shape, (first, last) = row["dtype"], row["shape"], row["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise Damaged(f"{where} is {row!r:.200}, not dtype, shape and data_offsets") from None
        require_shape(f"{where}, its shape,", shape)
        if not isinstance(dtype, str):
            raise Damaged(f"{where} has dtype {dtype!r:.80}, not {', '.join(TORCH_DTYPES)}")
        extent = Extent.whole(tuple(shape))
        needed = extent.numel * TORCH_DTYPES[dtype].itemsize
        is_range = type(first) is int and type(last) is int and 0 <= first <= last
        if not is_range or last - first != needed or begin + last > nbytes:
            raise Damaged(
                f"{where} has data_offsets {[first, last]!r:.200}; its {needed} bytes must be "
                f"within the {nbytes - begin} that the file has behind its header"
            )
        stored = StoredShard(path.name, extent, begin + first, 0)
        tensors[f"model.{name}"] = TensorRecord(dtype, "elements", extent.shape, [stored])
    require_own_bytes(tensors)
    return Manifest(0, "", 1, {}, tensors, {"optimizer": None, "settings": []})


def complete_here(folder: str | Path, step: int | None) -> tuple[Path, Manifest]:
    """Return the newest checkpoint that is complete on this host, or that of `step`, or raise."""
    for name in reversed(finished_saves(Path(folder))):
        if step in (None, step_of(name)):
            path = Path(folder) / name
            manifest = Manifest.read(path)
            if files_here(path, manifest) == manifest.files.keys():
                return path, manifest
    which = "" if step is None else f" of step {step}"
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    raise FileNotFoundError(
        f"{folder} has no complete checkpoint{which}: give the folder where Checkpointer saves"
    )


def whole_tensors(path: Path, manifest: Manifest, names: Sequence[str]) -> list[Tensor]:
    """Return tensors of a checkpoint, whole. Damaged if bytes were changed."""
    shards = [empty_shard(name, manifest.tensors[name]) for name in names]
    memory = [memory_of(shard.tensor) for shard in shards]
    with OpenFiles(path) as files:
        for name in names:
            require_each_element_once(path, name, manifest.tensors[name])
            require_as_saved(files, name, manifest.tensors[name])
        for read in plan_reads(manifest, shards):
            place = memory[read.shard][read.at : read.at + read.nbytes]
            read_into(files[read.file], read.offset, place)
    return [shard.tensor for shard in shards]
