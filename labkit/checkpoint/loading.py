"""Load the newest complete checkpoint into any layout; each rank reads the bytes that it needs.

    saved on 2 ranks (ZeRO-3)       rank 0: elements 0-5         rank 1: elements 6-11
    loaded on 3 ranks (ZeRO-3)      0-3            4-7                     8-11
    reads of the middle rank                       4-5 | 6-7               from two files

1. Every rank reports which files it sees. The newest checkpoint with all its files is chosen.
2. The ranks together read all of it once, for the checksums. This finds flipped bytes.
3. Each rank reads the bytes of its shards, straight into their memory. Files that only another host
   has are read there, and sent. Only this step changes the model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.checkpoint.contents import Contents, ParameterState
from labkit.checkpoint.disk import checksum_of, read_into
from labkit.checkpoint.manifest import (
    TORCH_DTYPES,
    Damaged,
    DoesNotFit,
    Manifest,
    TensorRecord,
    files_here,
    finished_saves,
    require_each_element_once,
    step_of,
)
from labkit.checkpoint.plain_data import agreed, gather_plain, memory_of, result_or_error
from labkit.comm import Group
from labkit.optimizer import MASTER
from labkit.shards import Extent, NamedShard


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint, and the ranks that see each of its files."""

    manifest: Manifest
    path: Path
    seen_by: dict[str, list[int]]
    """The ranks, by file."""
    earlier: list[int]
    """The steps of earlier complete checkpoints, newest first."""
    skipped: list[str]
    """Names of newer checkpoints that are not complete."""


class LoadResult(NamedTuple):
    """The result of a load, and how much was read for it."""

    step: int
    world_size: int
    """World size of the save."""
    bytes_read: int
    """Bytes of this rank's shards, also those that another host read."""
    bytes_verified: int
    """Bytes that this rank read to compare checksums."""
    skipped: list[str]
    """Newer checkpoints that are not complete, by their folders' names."""


class ReadRange(NamedTuple):
    """`nbytes` of a file from `offset` on, and where they go: into a shard from byte `at` on."""

    file: str
    offset: int
    nbytes: int
    shard: int
    at: int


def find(folder: Path, group: Group, step: int | None = None) -> FoundCheckpoint | None:
    """Return the newest complete checkpoint, or that of `step`; None where nothing was saved.

    Every rank calls it. Damaged for a manifest that was changed, and if there are checkpoints but
    no complete one; FileNotFoundError for a step without a complete one.
    Wire: an all-gather of the files that each rank sees; the manifest, if a rank lacks it.
    """
    manifests, here = _seen_here(folder)
    by_rank = gather_plain(here, group)
    saves = {name for of_rank in by_rank for name in of_rank}
    names = sorted(saves, key=lambda name: (step_of(name), name), reverse=True)
    seen_by = {name: _seen_by(name, by_rank) for name in names}
    complete = [name for name in names if seen_by[name] and all(seen_by[name].values())]
    asked = [name for name in names if step in (None, step_of(name))]
    chosen = next((name for name in asked if name in complete or not seen_by[name]), None)
    if chosen is None:
        _require_none(folder, step, complete, seen_by)
        return None
    earlier = [step_of(name) for name in complete if step_of(name) < step_of(chosen)]
    if not seen_by[chosen]:
        text = next(each[chosen] for each in by_rank if isinstance(each.get(chosen), str))
        raise Damaged(f"{text}; {_instead(earlier)}")
    manifest = manifests.get(chosen)
    if not all(chosen in each for each in by_rank):
        texts = gather_plain(manifest and manifest.to_text(), group)
        manifest = Manifest.from_text(next(text for text in texts if text))
    assert manifest is not None
    return FoundCheckpoint(
        manifest, folder / chosen, seen_by[chosen], earlier, asked[: asked.index(chosen)]
    )


Seen = dict[str, bool] | str
"""By file: True if a rank sees it. Or the reason why it cannot read the manifest."""


def _seen_here(folder: Path) -> tuple[dict[str, Manifest], dict[str, Seen]]:
    """Return the manifests that this rank can read, and the files that it sees of each save."""
    manifests: dict[str, Manifest] = {}
    here: dict[str, Seen] = {}
    for name in finished_saves(folder):
        try:
            manifests[name] = Manifest.read(folder / name)
            seen = files_here(folder / name, manifests[name])
            here[name] = {file: file in seen for file in manifests[name].files}
        except (Damaged, OSError) as error:
            here[name] = str(error)
    return manifests, here


def _seen_by(name: str, by_rank: Sequence[dict[str, Seen]]) -> dict[str, list[int]]:
    """Return the ranks that see each file of a checkpoint; {} if one cannot read its manifest."""
    found: dict[str, list[int]] = {}
    for rank, here in enumerate(by_rank):
        files = here.get(name, {})
        if isinstance(files, str):
            return {}
        for file, is_here in files.items():
            found.setdefault(file, []).extend([rank] * is_here)
    return found


def _require_none(
    folder: Path,
    step: int | None,
    complete: Sequence[str],
    seen_by: dict[str, dict[str, list[int]]],
) -> None:
    """Raise FileNotFoundError if `step` is given; Damaged, of the newest, if there are saves."""
    if step is not None:
        steps = ", ".join(str(step_of(name)) for name in complete) or "none"
        raise FileNotFoundError(f"{folder} has no complete checkpoint of step {step}: only {steps}")
    for name, of_files in seen_by.items():
        lacks = [file for file, ranks in of_files.items() if not ranks]
        raise Damaged(
            f"{folder / name} lacks {', '.join(lacks)}, and no checkpoint there is complete. "
            "Mount the storage of all hosts; to start from scratch, take another folder"
        )


def _instead(earlier: Sequence[int]) -> str:
    if not earlier:
        return "there is no complete checkpoint before it"
    return f"load(step={earlier[0]}) takes the complete one before it"


def verify(found: FoundCheckpoint, group: Group) -> int:
    """Read all bytes of a checkpoint once, all ranks together, and compare the checksums.

    Returns how many bytes this rank has read. Damaged, on every rank, with file and tensor.
    """
    return agreed(result_or_error(lambda: _verify_share(found, group)), Damaged, group)


def _verify_share(found: FoundCheckpoint, group: Group) -> int:
    load = [0] * group.size
    with OpenFiles(found.path) as files:
        for name, record in found.manifest.tensors.items():
            mine = []
            for stored in record.shards:
                rank = min(found.seen_by[stored.file], key=lambda rank: load[rank])
                load[rank] += stored.extent.numel * TORCH_DTYPES[record.dtype].itemsize
                mine += [stored] * (rank == group.rank)
            try:
                require_each_element_once(found.path, name, record)
                require_as_saved(files, name, replace(record, shards=mine))
            except Damaged as error:
                raise Damaged(f"{error}; {_instead(found.earlier)}") from None
    return load[group.rank]


def require_as_saved(files: OpenFiles, name: str, record: TensorRecord) -> None:
    """Raise Damaged, with file and tensor, if the bytes of a shard are not the saved ones."""
    for stored in record.shards:
        nbytes = stored.extent.numel * TORCH_DTYPES[record.dtype].itemsize
        try:
            checksum = checksum_of(files[stored.file], stored.offset, nbytes)
        except EOFError as error:  # it had this length when the manifest was read
            raise Damaged(f"{name}: {files.folder / stored.file}: {error}") from None
        if checksum != stored.checksum:
            raise Damaged(
                f"{name} has other bytes than were saved, in {files.folder / stored.file}"
            )


def fitting_shards(
    manifest: Manifest, contents: Contents, group: Group
) -> tuple[list[NamedShard], list[dict[str, NamedShard]]]:
    """Return this rank's `wanted_shards`. DoesNotFit, on every rank, if one's do not fit.

    DoesNotFit also if the checkpoint has parameters that no rank has.
    """
    wanted = agreed(result_or_error(lambda: wanted_shards(manifest, contents)), DoesNotFit, group)
    of_ranks = gather_plain([shard.name for shard in contents.tensors()], group)
    saved = {name for name in manifest.tensors if name.startswith("model.")}
    if missing := sorted(saved.difference(*of_ranks)):
        raise DoesNotFit(
            f"the checkpoint has {missing[0]}, and no rank does: it is of another model, or the "
            "ranks of this group have a part of the model"
        )
    return wanted


def wanted_shards(
    manifest: Manifest, contents: Contents
) -> tuple[list[NamedShard], list[dict[str, NamedShard]]]:
    """Return this rank's shards to fill, and again those of the optimizer, by tensor and state.

    DoesNotFit for names, shapes or dtypes of another model, and for another kind of optimizer.
    """
    shards = contents.tensors()
    for shard in shards:
        _require_fits(shard, manifest.tensors.get(shard.name))
    saved_by, here = manifest.values["optimizer"], contents.optimizer_name
    if saved_by and here and saved_by != here:
        raise DoesNotFit(
            f"the checkpoint has the states of {saved_by}, and this optimizer is {here}: take "
            "the same, or load the model alone, Checkpointer(folder, model)"
        )
    if not contents.has_same_groups(manifest.values["settings"]):
        raise DoesNotFit(
            f"the checkpoint has {len(manifest.values['settings'])} groups of parameters, and this "
            "optimizer another number: make it with the same groups"
        )
    if other := contents.mismatched_setting(manifest.values["settings"]):
        raise DoesNotFit(f"the checkpoint has the setting {other}")
    states = []
    by_parameter = _states_by_parameter(manifest)
    for state in contents.states():
        saved = by_parameter.get(state.parameter, {}) if state.extent.numel else {}
        if saved and (MASTER in saved) != (MASTER in state.values):
            which = "with" if MASTER in saved else "without"
            raise DoesNotFit(
                f"{state.parameter} was trained {which} a master in float32, and this optimizer is "
                "the other way: make it as it was"
            )
        has_stepped = saved.keys() > {MASTER} if MASTER in saved else bool(saved)
        lacking = contents.required_states - saved.keys() if has_stepped else None
        if lacking:
            raise DoesNotFit(
                f"the checkpoint has no state {min(lacking)} of {state.parameter}, which {here} "
                "needs"
            )
        found = {key: _empty_state(state, key, record, contents) for key, record in saved.items()}
        shards += found.values()
        states.append(found)
    return shards, states


def empty_shard(name: str, record: TensorRecord) -> NamedShard:
    """Return an empty tensor of the size of a saved one."""
    tensor = torch.empty(record.shape, dtype=TORCH_DTYPES[record.dtype], device="cpu")
    return NamedShard(name, Extent.whole(record.shape), tensor, record.kind)


def _states_by_parameter(manifest: Manifest) -> dict[str, dict[str, TensorRecord]]:
    found: dict[str, dict[str, TensorRecord]] = {}
    for name, record in manifest.tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            parameter, _, key = rest.rpartition(".")
            found.setdefault(parameter, {})[key] = record
    return found


def _empty_state(
    state: ParameterState, key: str, record: TensorRecord, contents: Contents
) -> NamedShard:
    name, dtype = f"optimizer.{state.parameter}.{key}", TORCH_DTYPES[record.dtype]
    is_count = key == "step" and not record.shape
    device = "cpu" if is_count and not contents.has_steps_on_device else state.target.device
    shape, extent = record.shape, Extent.whole(record.shape)
    if record.kind == "elements":
        shape, extent = tuple(state.target.shape), state.extent
    tensor = torch.empty(shape, dtype=dtype, device=device)
    shard = NamedShard(name, extent, tensor, record.kind)
    _require_fits(shard, record)
    if (
        key in contents.required_states
        and not is_count
        and record.kind != "int"
        and not dtype.is_floating_point
    ):
        raise DoesNotFit(f"{name} is {dtype} in the checkpoint, and no floating-point number")
    return shard


def _require_fits(shard: NamedShard, record: TensorRecord | None) -> None:
    if record is None:
        raise DoesNotFit(f"{shard.name} is not in the checkpoint, which is of another model")
    if record.shape != shard.extent.shape:
        raise DoesNotFit(
            f"{shard.name} has shape {shard.extent.shape}, and {record.shape} in the checkpoint, "
            "which is of another model"
        )
    saved = TORCH_DTYPES.get(record.dtype, record.dtype)
    if saved != shard.tensor.dtype:
        raise DoesNotFit(
            f"{shard.name} is {shard.tensor.dtype}, and {saved} in the checkpoint: "
            "make the model of that dtype, and convert it after loading"
        )


def plan_reads(manifest: Manifest, shards: Sequence[NamedShard]) -> list[ReadRange]:
    """Return the reads for these shards: each element once, and nothing else."""
    reads = []
    for number, shard in enumerate(shards):
        itemsize, left = shard.tensor.itemsize, shard.extent.numel
        for stored in manifest.tensors[shard.name].shards:
            for here, there, numel in shard.extent.overlaps(stored.extent):
                left -= numel
                offset = stored.offset + there * itemsize
                reads.append(
                    ReadRange(stored.file, offset, numel * itemsize, number, here * itemsize)
                )
        assert left == 0, f"{shard.name}: {left} elements are in no file"
    return reads


def fill(found: FoundCheckpoint, shards: Sequence[NamedShard], group: Group) -> int:
    """Fill the shards' tensors. Returns the bytes of this rank's shards.

    Damaged, on every rank, if a file that `verify` has read cannot be read any more: some tensors
    have changed by then.
    Wire: nothing with shared storage. Else an all-gather of missing reads, and an all-to-all.
    """
    reads = plan_reads(found.manifest, shards)
    buffers = [flat_on_cpu(shard.tensor) for shard in shards]
    memory = [memory_of(buffer) for buffer in buffers]
    with OpenFiles(found.path) as files:

        def read_here() -> None:
            for read in reads:
                if group.rank in found.seen_by[read.file]:
                    read_into(files[read.file], read.offset, _place(memory, read))

        agreed(result_or_error(read_here), Damaged, group)
        if any(len(ranks) < group.size for ranks in found.seen_by.values()):
            elsewhere = [read for read in reads if group.rank not in found.seen_by[read.file]]
            _fetch(found, elsewhere, memory, files, group)
    copy_back(shards, buffers)
    return sum(read.nbytes for read in reads)


def flat_on_cpu(x: Tensor) -> Tensor:
    """Return the tensor itself, flat, if bytes can be read straight into it; else a new one."""
    if x.device.type == "cpu" and x.is_contiguous():
        return x.detach().reshape(-1)
    return torch.empty(x.numel(), dtype=x.dtype, device="cpu")


def copy_back(shards: Sequence[NamedShard], buffers: Sequence[Tensor]) -> None:
    """Copy each new buffer of `flat_on_cpu` into its shard's tensor."""
    with torch.no_grad():
        for shard, buffer in zip(shards, buffers, strict=True):
            if buffer.data_ptr() != shard.tensor.data_ptr():
                shard.tensor.copy_(buffer.view(shard.tensor.shape))


def _place(memory: Sequence[memoryview], read: ReadRange) -> memoryview:
    return memory[read.shard][read.at : read.at + read.nbytes]


def _fetch(
    found: FoundCheckpoint,
    reads: list[ReadRange],
    memory: list[memoryview],
    files: OpenFiles,
    group: Group,
) -> None:
    """Get reads from the lowest rank that sees each file."""
    asked = gather_plain([read[:3] for read in reads], group)
    mine = [
        [read for read in of_rank if found.seen_by[read[0]][0] == group.rank] for of_rank in asked
    ]
    sent = torch.empty(
        sum(n for of_rank in mine for _, _, n in of_rank), dtype=torch.uint8, device="cpu"
    )

    def read_for_others() -> None:
        at, out = 0, memory_of(sent)
        for file, offset, nbytes in (read for of_rank in mine for read in of_rank):
            read_into(files[file], offset, out[at : at + nbytes])
            at += nbytes

    agreed(result_or_error(read_for_others), Damaged, group)
    by_owner = sorted(reads, key=lambda read: found.seen_by[read.file][0])
    received = group.all_to_all(
        sent.to(group.device),
        [sum(n for _, _, n in of_rank) for of_rank in mine],
        [
            sum(read.nbytes for read in reads if found.seen_by[read.file][0] == rank)
            for rank in range(group.size)
        ],
    ).cpu()
    at, source = 0, memory_of(received)
    for read in by_owner:  # sorted() keeps the order in which they were asked for
        _place(memory, read)[:] = source[at : at + read.nbytes]
        at += read.nbytes


class OpenFiles(dict[str, int]):
    """The descriptors of a checkpoint's files, opened when they are first used."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stack = folder, ExitStack()

    def __missing__(self, name: str) -> int:
        file = self[name] = os.open(self.folder / name, os.O_RDONLY)
        self._stack.callback(os.close, file)
        return file

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
