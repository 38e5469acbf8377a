"""A load: the newest complete checkpoint, into any layout, by the bytes that each rank needs.

    saved on 2 ranks (ZeRO-3)       rank 0: elements 0-5         rank 1: elements 6-11
    loaded on 3 ranks (ZeRO-3)      0-3            4-7                     8-11
    reads of the middle rank                       4-5 | 6-7               from two files

1. Every rank says which files of which checkpoints it sees. Complete is what all ranks together see
   all files of; the newest is taken.
2. The ranks share the work of reading all of it once, for the checksums.
3. Each rank reads what its tensors overlap with, straight into their memory. Files that are on
   another host only are read there, and sent.

Nothing of the model is changed before 3. A flipped byte is found in 2.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.checkpoint.contents import MASTER, Contents, Piece, StateOf
from labkit.checkpoint.disk import checksum_of, read_into
from labkit.checkpoint.extent import Extent
from labkit.checkpoint.manifest import Damaged, Manifest, Whole, files_here, named, step_of
from labkit.checkpoint.plain_data import gather_plain, raise_everywhere
from labkit.checkpoint.saving import DTYPES, memory_of
from labkit.comm import Group

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class DoesNotFit(ValueError):
    """A checkpoint of another model. Nothing was loaded."""


@dataclass(frozen=True)
class Found:
    """A complete checkpoint, and who sees which of its files."""

    manifest: Manifest
    path: Path
    seen_by: dict[str, list[int]]
    """The ranks, by file."""
    earlier: list[int]
    """The steps of complete ones before it, newest first."""
    skipped: list[str]
    """Newer ones that are not complete, by name."""


class Read(NamedTuple):
    """`nbytes` of a file from `offset` on, and where they go: into a piece from byte `at` on."""

    file: str
    offset: int
    nbytes: int
    piece: int
    at: int


def find(folder: Path, group: Group, step: int | None = None) -> Found | None:
    """The newest complete checkpoint, or that of `step`; None without any. Every rank calls it.

    Damaged for a manifest that is not what was saved; FileNotFoundError for a step that has no
    complete one. Wire: an all-gather of what each rank sees, and one of the manifest.
    """
    manifests: dict[str, Manifest] = {}
    damaged: dict[str, str] = {}
    for name in named(folder):
        try:
            manifests[name] = Manifest.read(folder / name)
        except (Damaged, OSError) as error:
            damaged[name] = str(error)
    files = {
        name: {file: file in files_here(folder / name, manifest) for file in manifest.files}
        for name, manifest in manifests.items()
    }
    by_rank = gather_plain([files, damaged], group)
    seen_by = {
        name: {
            file: [r for r, (theirs, _) in enumerate(by_rank) if theirs.get(name, {}).get(file)]
            for file in of_rank[name]
        }
        for of_rank, _ in by_rank
        for name in of_rank
    }
    unreadable = {name: text for _, of_rank in by_rank for name, text in of_rank.items()}
    names = sorted({*seen_by, *unreadable}, key=lambda name: (step_of(name), name), reverse=True)
    complete = [name for name in names if name in seen_by and all(seen_by[name].values())]
    if step is not None:
        names = [name for name in names if step_of(name) == step]
    for position, name in enumerate(names):
        earlier = [step_of(other) for other in complete if step_of(other) < step_of(name)]
        if name in unreadable:
            raise Damaged(f"{unreadable[name]}; {_instead(earlier)}")
        if name in complete:
            texts = gather_plain(manifests[name].to_text() if name in manifests else None, group)
            manifest = Manifest.from_text(next(text for text in texts if text))
            return Found(manifest, folder / name, seen_by[name], earlier, names[:position])
    if step is not None:
        steps = ", ".join(str(step_of(name)) for name in complete) or "none"
        raise FileNotFoundError(f"{folder} has no complete checkpoint of step {step}: only {steps}")
    return None


def _instead(earlier: Sequence[int]) -> str:
    if not earlier:
        return "there is no complete checkpoint before it"
    return f"load(step={earlier[0]}) takes the complete one before it"


def verify(found: Found, group: Group) -> int:
    """Read all bytes of a checkpoint once, by all ranks together, and compare their checksums.

    Returns how many bytes this rank has read. Damaged, on every rank, that names file and tensor.
    """
    load, nbytes, wrong = [0] * group.size, 0, []
    with _Files(found.path) as files:
        for name, whole in found.manifest.tensors.items():
            for stored in whole.pieces:
                size = stored.extent.numel * TORCH_DTYPES[whole.dtype].itemsize
                rank = min(found.seen_by[stored.file], key=lambda rank: load[rank])
                load[rank] += size
                if rank != group.rank:
                    continue
                nbytes += size
                if checksum_of(files[stored.file], stored.offset, size) != stored.checksum:
                    wrong.append(f"{name} in {found.path / stored.file}")
    text = f"other bytes than were saved: {', '.join(wrong)}; {_instead(found.earlier)}"
    raise_everywhere(Damaged(text) if wrong else None, Damaged, group)
    return nbytes


class Loaded(NamedTuple):
    """What was loaded, and how much was read for it."""

    step: int
    world_size: int
    """Of the save."""
    bytes_read: int
    """By this rank, of what it needs."""
    bytes_verified: int
    """By this rank, for checksums."""
    skipped: list[str]
    """Newer checkpoints that are not complete, by their folders' names."""


def wanted_pieces(
    manifest: Manifest, contents: Contents
) -> tuple[list[Piece], list[dict[str, Piece]]]:
    """This rank's pieces, to be filled; those among them of the optimizer, by tensor and state.

    DoesNotFit for names, shapes or dtypes of another model.
    """
    pieces = [Piece(f"model.{each.name}", each.extent, each.tensor) for each in contents.tensors]
    for piece in pieces:
        _require_fits(piece, manifest.tensors.get(piece.name))
    if not contents.takes_settings(manifest.values["settings"]):
        raise DoesNotFit(
            f"the optimizer has another number of groups of parameters than the checkpoint, "
            f"{len(manifest.values['settings'])}: make it with the same groups"
        )
    states = []
    by_parameter = _states_by_parameter(manifest)
    for state in contents.states():
        values: dict[str, Piece] = {}
        for key, whole in by_parameter.get(state.parameter, {}).items():
            if not state.extent.numel or (key == MASTER and MASTER not in state.values):
                continue
            piece = _empty_state(state, key, whole)
            pieces.append(piece)
            values[key] = piece
        states.append(values)
    return pieces, states


def _states_by_parameter(manifest: Manifest) -> dict[str, dict[str, Whole]]:
    found: dict[str, dict[str, Whole]] = {}
    for name, whole in manifest.tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            parameter, _, key = rest.rpartition(".")
            found.setdefault(parameter, {})[key] = whole
    return found


def _empty_state(state: StateOf, key: str, whole: Whole) -> Piece:
    name, dtype = f"optimizer.{state.parameter}.{key}", TORCH_DTYPES[whole.dtype]
    if whole.kind == "elements":
        tensor = torch.empty(state.target.shape, dtype=dtype, device=state.target.device)
        piece = Piece(name, state.extent, tensor)
    else:  # torch keeps the number of steps on the CPU
        device = state.target.device if whole.shape else "cpu"
        tensor = torch.empty(whole.shape, dtype=dtype, device=device)
        piece = Piece(name, Extent.whole(whole.shape), tensor, whole.kind)
    _require_fits(piece, whole)
    return piece


def _require_fits(piece: Piece, whole: Whole | None) -> None:
    if whole is None:
        raise DoesNotFit(f"{piece.name} is not in the checkpoint, which is of another model")
    if whole.shape != piece.extent.shape:
        raise DoesNotFit(
            f"{piece.name} has shape {piece.extent.shape}, and {whole.shape} in the checkpoint, "
            "which is of another model"
        )
    if TORCH_DTYPES[whole.dtype] != piece.tensor.dtype:
        raise DoesNotFit(
            f"{piece.name} is {piece.tensor.dtype}, and {TORCH_DTYPES[whole.dtype]} in the "
            "checkpoint: make the model of that dtype, and convert it after loading"
        )


def plan_reads(manifest: Manifest, pieces: Sequence[Piece]) -> list[Read]:
    """What must be read for these pieces: each element once, and nothing else."""
    reads = []
    for number, piece in enumerate(pieces):
        itemsize, left = piece.tensor.itemsize, piece.extent.numel
        for stored in manifest.tensors[piece.name].pieces:
            for here, there, numel in piece.extent.overlaps(stored.extent):
                left -= numel
                offset = stored.offset + there * itemsize
                reads.append(Read(stored.file, offset, numel * itemsize, number, here * itemsize))
        assert left == 0, f"{piece.name}: {left} elements are in no file"
    return reads


def fill(found: Found, pieces: Sequence[Piece], group: Group) -> int:
    """Fill the pieces' tensors. Returns how many bytes this rank has received from files.

    Wire: nothing with shared storage. Else an all-gather of what is missing, and an all-to-all.
    """
    reads = plan_reads(found.manifest, pieces)
    buffers = [_flat_on_cpu(piece.tensor) for piece in pieces]
    memory = [memory_of(buffer) for buffer in buffers]
    elsewhere = [read for read in reads if group.rank not in found.seen_by[read.file]]
    with _Files(found.path) as files:
        for read in reads:
            if group.rank in found.seen_by[read.file]:
                read_into(files[read.file], read.offset, _place(memory, read))
        if any(len(ranks) < group.size for ranks in found.seen_by.values()):
            _fetch(found, elsewhere, memory, files, group)
    with torch.no_grad():
        for piece, buffer in zip(pieces, buffers, strict=True):
            if buffer.data_ptr() != piece.tensor.data_ptr():
                piece.tensor.copy_(buffer.view(piece.tensor.shape))
    return sum(read.nbytes for read in reads)


def _flat_on_cpu(x: Tensor) -> Tensor:
    """The tensor itself, where bytes can be read straight into it, or a new one."""
    if x.device.type == "cpu" and x.is_contiguous():
        return x.detach().reshape(-1)
    return torch.empty(x.numel(), dtype=x.dtype)


def _place(memory: Sequence[memoryview], read: Read) -> memoryview:
    return memory[read.piece][read.at : read.at + read.nbytes]


def _fetch(
    found: Found, reads: list[Read], memory: list[memoryview], files: _Files, group: Group
) -> None:
    """Let the lowest rank that sees a file read for the ranks that don't."""
    asked = gather_plain([read[:3] for read in reads], group)
    mine = [
        [read for read in of_rank if found.seen_by[read[0]][0] == group.rank] for of_rank in asked
    ]
    sent = torch.empty(sum(n for of_rank in mine for _, _, n in of_rank), dtype=torch.uint8)
    at, out = 0, memory_of(sent)
    for file, offset, nbytes in (read for of_rank in mine for read in of_rank):
        read_into(files[file], offset, out[at : at + nbytes])
        at += nbytes
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


class _Files(dict[str, int]):
    """The descriptors of a checkpoint's files, opened when they are first used."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, ExitStack()

    def __missing__(self, name: str) -> int:
        file = self[name] = os.open(self._folder / name, os.O_RDONLY)
        self._stack.callback(os.close, file)
        return file

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
