"""Checkpoints of torch's Distributed Checkpoint (DCP): read into any layout, and written.

    labkit                               DCP, as torch's get_state_dict names things
    model.NAME                           model.NAME
    optimizer.NAME.STATE                 optim.state.NAME.STATE
    the optimizer's settings by group    optim.param_groups.INDEX.KEY
    rng.RANK.*, extra                    not written: other programs have their own

A job of FSDP2 or DDP saves `dcp.save({"model": ..., "optim": ...}, checkpoint_id=folder)` with the
two dicts of get_state_dict, and loads such a folder the same way. Optimizers are torch.optim's.
A name that is not in this table is refused. A tied parameter has its first name only. So for a GPT
whose head is the embedding, a torch job does `state["model"].pop("head.weight")` before save and
load, and gives set_state_dict `options=StateDictOptions(strict=False)`.

DCP's folder has `.metadata`, a pickle, and files `__RANK_NUMBER.distcp`. A tensor is stored in
chunks, and a chunk is a box of the whole tensor. A rank reads the chunks that its shards overlap
with, one at a time, and keeps what it needs:

    a chunk of FSDP2    rows 0-2 of (5, 4)      x x x x  x x x x  x x x x
    a shard of ZeRO-3   elements 7 to 13                        x  x x x x  x x
    copied              elements 7 to 11                        x  x x x x

Unpickling runs code. `.metadata` and the optimizer's settings are pickles. dcp.load unpickles both,
so a stranger's folder can run any program on your machine. load_dcp reads both as plain data
(dcp_metadata.py, weights_only=True), and refuses what torch itself does not write there.
`trust=True` lets torch unpickle `.metadata`, for a folder whose writer you know.

Not imported with labkit.checkpoint, since DCP takes a second to load.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import stat
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from labkit.checkpoint import dcp_metadata, torch_optimizers
from labkit.checkpoint.contents import KERNEL_SETTINGS, Contents
from labkit.checkpoint.dcp_metadata import UntrustedMetadata as UntrustedMetadata
from labkit.checkpoint.loading import copy_back, fitting_shards, flat_on_cpu
from labkit.checkpoint.manifest import (
    DTYPES,
    TORCH_DTYPES,
    Damaged,
    DoesNotFit,
    Manifest,
    TensorRecord,
)
from labkit.checkpoint.plain_data import agreed, result_or_error
from labkit.checkpoint.whole_tensors import complete_here, whole_tensors
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.optimizer import MASTER
from labkit.shards import Extent, Kind, NamedShard, Overlap

_SETTING = re.compile(r"optim\.param_groups\.\d+\.\w+")


def load_dcp(
    folder: str | Path,
    model: nn.Module,
    optimizer: Any = None,
    group: Group | None = None,
    *,
    trust: bool = False,
) -> None:
    """Load a folder that torch.distributed.checkpoint has saved. Every rank calls it.

    model, optimizer: of any strategy and world size, as for Checkpointer. folder: seen by all
    ranks. The optimizer's parameter groups must be those of the save, in the same order. If the
    folder has no optimizer, yours stays as it is. A setting that an older torch did not have gets
    the value that torch's load_state_dict gives it.
    trust: unpickle `.metadata`, which can run any code: only if you know who wrote the folder. It
    is needed if another program than torch has put objects into it.

    Errors come on every rank. UntrustedMetadata if only unpickling restores `.metadata`.
    DoesNotFit, before anything has changed, for another model or optimizer, and for a name that is
    not in the table above. OSError for a folder without `.metadata`. Damaged if a file cannot be
    read, or does not match the metadata.
    """
    group, contents, folder = chosen(group), Contents(model, optimizer), Path(folder)
    data = agreed(result_or_error(lambda: _metadata_bytes(folder)), OSError, group)
    reader = dcp.FileSystemReader(folder)

    def read() -> tuple[dcp.Metadata, list[dict[str, Any]]]:
        metadata = reader.read_metadata() if trust else dcp_metadata.read_metadata(folder, data)
        dcp_metadata.require_sizes(folder, metadata)
        reader.set_up_storage_reader(metadata, is_coordinator=False)
        return metadata, _read_settings(folder, reader, metadata)

    metadata, settings = agreed(result_or_error(read), Damaged, group, UntrustedMetadata)
    mapped = result_or_error(lambda: _manifest_of(metadata, settings, folder, contents))
    manifest, names = agreed(mapped, DoesNotFit, group)
    shards, states = fitting_shards(manifest, contents, group)

    def read_chunks() -> _Chunks:
        chunks = _Chunks({names[shard.name]: shard for shard in shards}, metadata)
        chunks.require_whole(folder, metadata)
        _read(folder, reader, chunks)
        return chunks

    chunks = agreed(result_or_error(read_chunks), Damaged, group)
    copy_back(shards, list(chunks.buffers.values()))
    if manifest.values["optimizer"] is not None:
        contents.load_states([{key: x.tensor for key, x in each.items()} for each in states])
        contents.load_settings(manifest.values["settings"])


def _metadata_bytes(folder: Path) -> bytes:
    path = folder / ".metadata"
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is no file")
    with path.open("rb") as file:
        return file.read(dcp_metadata.MOST_BYTES + 1)


def _read(folder: Path, reader: dcp.FileSystemReader, planner: Any) -> None:
    """Perform a planner's reads. Damaged, in one line, instead of torch's long errors."""
    try:
        reader.read_data(planner.plan, planner).wait()
    except pickle.UnpicklingError:
        raise Damaged(
            f"{folder} has objects where tensors and plain values belong, which are not unpickled"
        ) from None
    except OSError as error:
        raise Damaged(str(error)) from None
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise Damaged(f"{folder} cannot be read: {type(error).__name__}: {text:.200}") from None


def _manifest_of(
    metadata: dcp.Metadata,
    settings: list[dict[str, Any]],
    folder: str | Path,
    contents: Contents,
) -> tuple[Manifest, dict[str, str]]:
    """Return a folder's manifest in labkit's names, and DCP's names by labkit's. DoesNotFit."""
    rows, tensors, names = metadata.state_dict_metadata, {}, {}
    for name, row in rows.items():
        own_name = _labkit_name(name)
        is_mapped = own_name.startswith(("model.", "optimizer."))
        if _SETTING.fullmatch(name):
            continue
        if is_mapped and isinstance(row, TensorStorageMetadata):
            tensors[own_name], names[own_name] = _record_of(own_name, row, rows), name
        else:
            raise DoesNotFit(
                f"{folder} has {name}, which has no place in a labkit checkpoint: save "
                '{"model": ..., "optim": ...} with the two dicts of get_state_dict alone'
            )
    optimizer = contents.optimizer_name if settings else None
    if optimizer and not optimizer.startswith("torch.optim."):
        raise DoesNotFit(
            f"{folder} is of an optimizer of torch.optim, and this one is {optimizer}: "
            "take torch's, or load the model alone"
        )
    if optimizer:
        of_states = {name for name in tensors if name.startswith("optimizer.")}
        states = {name.rpartition(".")[2] for name in of_states}
        own = contents.settings()
        settings = torch_optimizers.settings_for_this_torch(
            str(folder), optimizer, own, settings, states
        )
    values = {"optimizer": optimizer, "settings": settings}
    return Manifest(0, "", 0, {}, tensors, values), names


def _record_of(name: str, row: TensorStorageMetadata, rows: Mapping[str, Any]) -> TensorRecord:
    dtype, shape = row.properties.dtype, tuple(row.size)
    if dtype not in DTYPES:
        raise DoesNotFit(f"{name} is {dtype}, which safetensors does not have")
    kind: Kind = "elements"
    if name.startswith("optimizer."):
        parameter = name.removeprefix("optimizer.").rpartition(".")[0]
        of_parameter = rows.get(f"model.{parameter}")
        is_cut = isinstance(of_parameter, TensorStorageMetadata) and of_parameter.size == row.size
        kind = "elements" if is_cut else "whole"
    return TensorRecord(DTYPES[dtype], kind, shape, [])


def _labkit_name(name: str) -> str:
    return re.sub(r"^optim\.state\.", "optimizer.", name)


def _read_settings(
    folder: Path, reader: dcp.FileSystemReader, metadata: dcp.Metadata
) -> list[dict[str, Any]]:
    """Return the optimizer's settings by group; [] where the folder has no optimizer. Damaged."""
    planner = _Settings(folder, metadata)
    _read(folder, reader, planner)
    groups: dict[int, dict[str, Any]] = {}
    for name, value in planner.found.items():
        _, _, index, key = name.split(".")
        groups.setdefault(int(index), {})[key] = value
    return [group for _, group in sorted(groups.items())]


class _Settings(dcp.DefaultLoadPlanner):
    """Reads an optimizer's settings, which DCP stores with torch.save, without running code."""

    def __init__(self, folder: Path, metadata: dcp.Metadata) -> None:
        super().__init__()
        self.found: dict[str, Any] = {}
        self.plan = LoadPlan([])
        none = torch.Size([])
        for name in filter(_SETTING.fullmatch, metadata.state_dict_metadata):
            index = MetadataIndex(name)
            info = dcp_metadata.kept(metadata.storage_data, index)
            dcp_metadata.require_in_folder(folder, info, least=1)
            item = ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none)
            self.plan.items.append(item)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take one setting. torch's own planner unpickles it."""
        loaded = torch.load(value, weights_only=True)
        each = loaded if isinstance(loaded, tuple | list) else [loaded]
        if not all(isinstance(one, bool | int | float | str | None) for one in each):
            name = read_item.storage_index.fqn
            raise Damaged(f"{name} is {loaded!r:.80}, where a number, a text or a tuple belongs")
        self.found[read_item.storage_index.fqn] = loaded


def _alone(act: Callable[..., Any], *given: Any, **options: Any) -> None:
    """Call a function of DCP in this process alone, without DCP's warning about that.

    It raises the error inside DCP's CheckpointException, which is not an Exception.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            act(*given, no_dist=True, **options)
        except dcp.CheckpointException as error:
            raise error.failures[0][0] from None


class _Chunks(dcp.DefaultLoadPlanner):
    """The stored chunks that a rank reads, and the elements that it takes from each.

    FileSystemReader asks for a buffer for one chunk after the other, and returns it filled.
    """

    def __init__(self, shards: Mapping[str, NamedShard], metadata: dcp.Metadata) -> None:
        """shards: this rank's, by the names that DCP has."""
        super().__init__()
        self.buffers = {name: flat_on_cpu(shard.tensor) for name, shard in shards.items()}
        self.plan = LoadPlan([])
        self._shards = dict(shards)
        self._overlaps: dict[MetadataIndex, list[Overlap]] = {}
        for name, shard in shards.items():
            row = metadata.state_dict_metadata[name]
            assert isinstance(row, TensorStorageMetadata)
            for chunk in row.chunks:
                sizes, first = chunk.sizes, torch.Size([0] * len(chunk.sizes))
                box = tuple((at, at + n) for at, n in zip(chunk.offsets, sizes, strict=True))
                extent = Extent(tuple(row.size), box, 0, math.prod(sizes))
                if overlaps := shard.extent.overlaps(extent):
                    index = MetadataIndex(name, chunk.offsets)
                    self._overlaps[index] = overlaps
                    item = ReadItem(LoadItemType.TENSOR, index, first, index, first, sizes)
                    self.plan.items.append(item)

    def require_whole(self, folder: Path, metadata: dcp.Metadata) -> None:
        """Raise Damaged if the chunks lack an element, or are not where the metadata says."""
        runs: dict[str, list[tuple[int, int]]] = {name: [] for name in self._shards}
        for item in self.plan.items:
            index = item.storage_index
            row = metadata.state_dict_metadata[index.fqn]
            assert isinstance(row, TensorStorageMetadata)
            info = dcp_metadata.kept(metadata.storage_data, index)
            least = dcp_metadata.bytes_of(row, item.lengths)
            dcp_metadata.require_in_folder(folder, info, least)
            runs[index.fqn] += [(here, numel) for here, _, numel in self._overlaps[index]]
        for name, shard in self._shards.items():
            dcp_metadata.require_each_element_once(name, runs[name], shard.extent.numel)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return a buffer for a chunk."""
        name = read_item.storage_index.fqn
        return torch.empty(read_item.lengths, dtype=self.buffers[name].dtype, device="cpu")

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Copy this rank's elements from a chunk."""
        index = read_item.storage_index
        for here, there, numel in self._overlaps[index]:
            chunk = tensor.reshape(-1)[there : there + numel]
            self.buffers[index.fqn][here : here + numel] = chunk


def save_as_dcp(folder: str | Path, out: str | Path, step: int | None = None) -> None:
    """Write the newest complete checkpoint of `folder`, or that of `step`, as a DCP folder `out`.

    One process does it, and holds one tensor at a time. torch's `dcp.load` reads the folder into
    any number of ranks, and `dcp_to_torch_save` makes one file of it.

    FileNotFoundError if this host has no complete checkpoint; FileExistsError for an `out` that
    exists; ValueError for an optimizer that torch does not have, and for several groups of
    parameters, since a labkit checkpoint does not say which parameter is in which.
    """
    path, manifest = complete_here(folder, step)
    model: dict[str, Tensor] = {}
    parameters: list[str] = []
    states: dict[str, dict[str, Tensor]] = {}
    for name, record in manifest.tensors.items():
        kind, _, rest = name.partition(".")
        empty = torch.empty(record.shape, dtype=TORCH_DTYPES[record.dtype], device="meta")
        if kind == "model":
            model[rest] = empty
            parameters += [rest] * (record.kind == "elements")
        elif kind == "optimizer":
            parameter, _, key = rest.rpartition(".")
            states.setdefault(parameter, {})[key] = empty
    state: dict[str, Any] = {"model": model}
    if manifest.values["optimizer"] is not None:
        params = list(states) or parameters  # SGD without momentum has no states
        group = {**_group_of(manifest, states), "params": params}
        state["optim"] = {"state": states, "param_groups": [group]}
    Path(out).mkdir(parents=True)
    _alone(dcp.save, state, checkpoint_id=out, planner=_ReadWhenWritten(path, manifest))


def _group_of(manifest: Manifest, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one parameter group of torch's optimizer. ValueError as in save_as_dcp."""
    optimizer, settings = manifest.values["optimizer"], manifest.values["settings"]
    has_masters = any(MASTER in each for each in states.values())
    if not optimizer.startswith("torch.optim.") or has_masters or len(settings) != 1:
        raise ValueError(
            f"the checkpoint is of {optimizer}, {'with' if has_masters else 'without'} masters, "
            f"with {len(settings)} groups of parameters, and DCP's readers expect one of "
            "torch.optim, without masters, with one group: save the model alone, "
            "Checkpointer(folder, model), and write that"
        )
    plain = {k: tuple(x) if isinstance(x, list) else x for k, x in settings[0].items()}
    return {**KERNEL_SETTINGS, **plain}


class _ReadWhenWritten(dcp.DefaultSavePlanner):
    """Reads each tensor of a labkit checkpoint when DCP writes it."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__()
        self._path, self._manifest = path, manifest

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the tensor for an empty one; settings as they are."""
        found = super().lookup_object(index)
        if not isinstance(found, Tensor):
            return found
        return whole_tensors(self._path, self._manifest, [_labkit_name(index.fqn)])[0]
