"""A save: who writes what, and the moment at which all of it counts.

    rank 0    write its file, sync | see all files, write the manifest, sync | rename, sync folder
    rank 1    write its file, sync |                                         |
              -------------------- step-40-9f2c11d0.partial -----------------| step-40-9f2c11d0
                                   ^                                         ^
                        sizes and checksums are gathered           the save counts from here on

Ranks that hold the same elements share the writing: of n replicas each writes an n-th. A name
without `.partial` exists only after all bytes under it are on the disk, so whenever the job dies,
the folder has the checkpoint before or the new one, whole. Older ones are removed after that.

Without shared storage every storage has a leader, the lowest of its ranks, that does rank 0's part
there. The save counts from the last leader's rename on: `loading` asks all hosts.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.checkpoint.contents import Kind, Piece
from labkit.checkpoint.disk import Disk, Part, Written, write_shard
from labkit.checkpoint.extent import Extent
from labkit.checkpoint.manifest import (
    MANIFEST,
    PARTIAL,
    REMOVED,
    Manifest,
    Stored,
    Whole,
    leftovers,
    named,
    step_of,
)
from labkit.checkpoint.plain_data import gather_plain, raise_everywhere
from labkit.comm import Group

SPLIT_BYTES = 1 << 20
"""Replicas share the writing of tensors from this size on; smaller ones are one rank's."""
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""safetensors' names."""
Row = tuple[str, str, Kind, tuple[int, ...], tuple[tuple[int, int], ...], int, int]
"""A piece without its tensor: name, dtype, kind, and the fields of its extent."""


class SaveFailed(RuntimeError):
    """A save that does not count. The checkpoints before are untouched, and training can go on."""


@dataclass(frozen=True)
class Share:
    """What one rank writes of one of its pieces: the elements from `start` to `stop`."""

    piece: int
    extent: Extent
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """Who writes what, the same on every rank."""

    shares: list[list[Share]]
    """By rank."""
    rows: list[list[Row]]
    """By rank: its pieces."""


def row_of(piece: Piece) -> Row:
    """A piece without its tensor. TypeError for a dtype that safetensors does not have."""
    if piece.tensor.dtype not in DTYPES:
        raise TypeError(f"{piece.name} is {piece.tensor.dtype}, which safetensors does not have")
    extent = piece.extent
    dtype = DTYPES[piece.tensor.dtype]
    return piece.name, dtype, piece.kind, extent.shape, extent.box, extent.start, extent.stop


def make_plan(rows: list[list[Row]]) -> Plan:
    """Deal out the writing. rows: by rank. ValueError where elements of a tensor are on no rank."""
    holders: dict[Row, list[tuple[int, int]]] = {}
    for rank, of_rank in enumerate(rows):
        for index, row in enumerate(of_rank):
            holders.setdefault(row, []).append((rank, index))
    _require_all_elements(holders)
    shares: list[list[Share]] = [[] for _ in rows]
    load = [0] * len(rows)
    for row, held in holders.items():
        extent, itemsize = Extent(*row[3:]), _SIZES[row[1]]
        if extent.numel * itemsize < SPLIT_BYTES:
            held = [min(held, key=lambda each: load[each[0]])]
        for k, (rank, index) in enumerate(held):
            start, stop = (extent.numel * i // len(held) for i in (k, k + 1))
            load[rank] += (stop - start) * itemsize
            if start < stop:
                shares[rank].append(Share(index, extent.within(start, stop), start, stop))
    return Plan(shares, rows)


def _require_all_elements(holders: dict[Row, list[tuple[int, int]]]) -> None:
    numel: dict[str, int] = {}
    first: dict[str, Row] = {}
    for row in holders:
        name = row[0]
        if first.setdefault(name, row)[1:4] != row[1:4]:
            raise ValueError(
                f"{name} is {first[name][1:4]} on rank {holders[first[name]][0][0]} and {row[1:4]} "
                f"on rank {holders[row][0][0]}: these are ranks of several models"
            )
        numel[name] = numel.get(name, 0) + row[6] - row[5]
    for name, row in first.items():
        if numel[name] != math.prod(row[3]):
            raise ValueError(
                f"{name} has {math.prod(row[3])} elements, and the ranks of this group hold "
                f"{numel[name]} of them: save with the group of all ranks that share the model"
            )


_SIZES = {name: dtype.itemsize for dtype, name in DTYPES.items()}


def parts_of(plan: Plan, rank: int, pieces: Sequence[Piece]) -> list[tuple[Share, Tensor]]:
    """What a rank writes: flat tensors, views of its pieces where these are contiguous."""
    return [
        (share, pieces[share.piece].tensor.detach().reshape(-1)[share.start : share.stop])
        for share in plan.shares[rank]
    ]


def file_of(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:04d}.safetensors"


def part_header(plan: Plan, rank: int, share: Share, number: int) -> tuple[str, str, list[int]]:
    """Its name, dtype and shape in the file: the tensor's own name, where all of it is there."""
    name, dtype, *_ = plan.rows[rank][share.piece]
    if share.extent == Extent.whole(share.extent.shape):
        return name, dtype, list(share.extent.shape)
    return f"{name}/part {number}", dtype, [share.extent.numel]


def write_parts(disk: Disk, path: Path, plan: Plan, rank: int, pieces: Sequence[Piece]) -> Written:
    """Write a rank's file from the tensors' own memory. OSError."""
    tensors = [(share, x.cpu()) for share, x in parts_of(plan, rank, pieces)]
    parts = [
        Part(*part_header(plan, rank, share, number), memory_of(x))
        for number, (share, x) in enumerate(tensors)
    ]
    return write_shard(disk, path, parts)


def memory_of(x: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, which must outlive them."""
    return memoryview((ctypes.c_char * x.nbytes).from_address(x.data_ptr())).cast("B")


@dataclass(frozen=True)
class Commit:
    """The second half of a save: from the written files to a checkpoint that counts."""

    folder: Path
    disk: Disk
    plan: Plan
    step: int
    identity: str
    values: dict[str, Any]
    is_kept: Callable[[int, Sequence[int]], bool]
    """Whether a step's checkpoint stays, given all steps there are, newest first."""

    @property
    def partial(self) -> Path:
        """The folder until all of it is on the disk."""
        return self.folder / f"step-{self.step:08d}-{self.identity}{PARTIAL}"

    def finish(self, written: Written | Exception, group: Group) -> list[Path]:
        """Every rank calls it, with what it has written. SaveFailed, on all, if one could not.

        Returns when the save counts, with the folders that can be removed now.

        Wire: a few all-gathers of plain data, the longest with a checksum for each part.
        """
        try:
            error = written if isinstance(written, Exception) else None
            raise_everywhere(error, SaveFailed, group)
            assert not isinstance(written, Exception)
            manifest = self._manifest(gather_plain(written, group))
            leads = self._leads(group)
            self._everywhere(leads, self._write_manifest, manifest, group)
            self._everywhere(leads, self._rename, manifest, group)
        except SaveFailed:
            remove_folders(self.disk, [self.partial])
            raise
        return self._retired(manifest) if leads else []

    def _manifest(self, written: list[tuple[list[int], list[int], int]]) -> Manifest:
        all_rows = (row for rows in self.plan.rows for row in rows)
        tensors = {row[0]: Whole(*row[1:4], []) for row in all_rows}
        for rank, (offsets, checksums, _) in enumerate(written):
            for share, offset, checksum in zip(
                self.plan.shares[rank], offsets, checksums, strict=True
            ):
                name = self.plan.rows[rank][share.piece][0]
                stored = Stored(file_of(rank), share.extent, offset, checksum)
                tensors[name].pieces.append(stored)
        files = {file_of(rank): nbytes for rank, (_, _, nbytes) in enumerate(written)}
        return Manifest(self.step, self.identity, len(written), files, tensors, self.values)

    def _leads(self, group: Group) -> bool:
        """Whether this rank is the lowest of those whose files are in this storage."""
        return not any((self.partial / file_of(rank)).exists() for rank in range(group.rank))

    def _everywhere(
        self, leads: bool, act: Callable[[Manifest], None], manifest: Manifest, group: Group
    ) -> None:
        error = None
        try:
            if leads:
                act(manifest)
        except OSError as failed:
            error = failed
        raise_everywhere(error, SaveFailed, group)

    def _write_manifest(self, manifest: Manifest) -> None:
        self.disk.write_whole(self.partial / MANIFEST, manifest.to_text().encode())
        self.disk.sync_folder(self.partial)

    def _rename(self, manifest: Manifest) -> None:
        self.disk.rename(self.partial, self.folder / manifest.folder_name)
        self.disk.sync_folder(self.folder)

    def _retired(self, manifest: Manifest) -> list[Path]:
        """Take their names from checkpoints that are not kept, and find leftovers: to be removed.

        Not kept are later steps, too: they are of a run that was rolled back.
        """
        names = [name for name in named(self.folder) if name != manifest.folder_name]
        earlier = {name for name in names if step_of(name) < self.step}
        steps = sorted({self.step, *map(step_of, earlier)}, reverse=True)
        with suppress(OSError):  # the new one counts all the same
            for name in names:
                if name not in earlier or not self.is_kept(step_of(name), steps):
                    self.disk.rename(self.folder / name, self.folder / f"{name}{REMOVED}")
        return leftovers(self.folder, self.identity)


def remove_folders(disk: Disk, folders: Sequence[Path]) -> None:
    """Remove folders and their files. What cannot be removed is a leftover for the next save."""
    for folder in folders:
        with suppress(OSError):  # or another rank is removing it
            for path in folder.iterdir():
                disk.remove(path)
            disk.remove_folder(folder)
