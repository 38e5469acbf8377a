"""A save: which rank writes which bytes, and the moment from which all of them count.

    rank 0    write its file, sync | see all files, write the manifest, sync | rename, sync folder
    rank 1    write its file, sync |                                         |
              -------------------- step-40-9f2c11d0.partial -----------------| step-40-9f2c11d0
                                   ^                                         ^
                        sizes and checksums are gathered           the save counts from here on

This adds to plain.py: a manifest with names, places and checksums, so that other layouts read what
they need and a flipped byte is found; one error on all ranks if one cannot write; the removal of
older checkpoints; and storage that is not shared.

Replicas share the writing of tensors from 1 MiB on; one rank writes a smaller one. A name
without `.partial` exists only after all bytes under it are on the disk. So whenever the job dies,
the folder has the previous checkpoint or the new one, whole. Older ones are removed afterwards.

If storage is not shared, the lowest rank of each storage is its leader, and does rank 0's part
there. The save counts from the last leader's rename on: `loading` asks all hosts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from labkit.checkpoint.disk import Disk, Entry, Written, write_rank_file
from labkit.checkpoint.manifest import (
    DTYPES,
    MANIFEST,
    MOST_BYTES,
    PARTIAL,
    REMOVED,
    TORCH_DTYPES,
    Manifest,
    StoredShard,
    TensorRecord,
    file_of,
    finished_saves,
    leftovers,
    step_of,
)
from labkit.checkpoint.plain_data import agreed, gather_plain, memory_of, result_or_error
from labkit.comm import Group
from labkit.shards import Extent, Kind, NamedShard

SPLIT_BYTES = 1 << 20
"""Replicas share the writing of tensors from this size on; one rank writes a smaller one."""


class ShardSpec(NamedTuple):
    """A shard without its tensor."""

    name: str
    dtype: str
    kind: Kind
    extent: Extent


Header = tuple[str, str, tuple[int, ...]]
"""A tensor in a file: its name there, dtype and shape."""


class SaveFailed(RuntimeError):
    """A save that does not count. Earlier checkpoints are untouched, and training can go on."""


@dataclass(frozen=True)
class WriteShare:
    """The elements of one shard, from `start` to `stop`, that one rank writes."""

    shard: int
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """The elements that each rank writes. All ranks have the same plan."""

    shares: list[list[WriteShare]]
    """By rank."""
    rows: list[list[ShardSpec]]
    """By rank: the shards that it holds."""
    layouts: list[int]
    """By rank: a number that says which elements of the model it holds."""

    def extent(self, rank: int, share: WriteShare) -> Extent:
        """The elements of a share, in the whole tensor."""
        return self.rows[rank][share.shard].extent.within(share.start, share.stop)


def spec_of(shard: NamedShard) -> ShardSpec:
    """Return a shard without its tensor. TypeError for a dtype that safetensors does not have."""
    if shard.tensor.dtype not in DTYPES:
        raise TypeError(f"{shard.name} is {shard.tensor.dtype}, which safetensors does not have")
    return ShardSpec(shard.name, DTYPES[shard.tensor.dtype], shard.kind, shard.extent)


def make_plan(rows: list[list[ShardSpec]]) -> Plan:
    """Assign each element to the rank that writes it.

    rows: by rank. Replicas may be cut in different ways: a shard that overlaps with shards of lower
    ranks is not written. Buffers may differ between replicas, so the lowest rank writes its own,
    whole. ValueError if elements of a tensor are on no rank.
    """
    holders: dict[ShardSpec, list[tuple[int, int]]] = {}
    for rank, of_rank in enumerate(rows):
        for index, row in enumerate(of_rank):
            holders.setdefault(row, []).append((rank, index))
    shares: list[list[WriteShare]] = [[] for _ in rows]
    load = [0] * len(rows)
    for row in _each_element_once(holders):
        held = holders[row]
        numel, itemsize = row.extent.numel, TORCH_DTYPES[row.dtype].itemsize
        if row.kind != "elements":
            held = held[:1]
        elif numel * itemsize < SPLIT_BYTES:
            held = [min(held, key=lambda each: load[each[0]])]
        for k, (rank, index) in enumerate(held):
            start, stop = (numel * i // len(held) for i in (k, k + 1))
            load[rank] += (stop - start) * itemsize
            if start < stop:
                shares[rank].append(WriteShare(index, start, stop))
    return Plan(shares, rows, [layout_of(of_rank) for of_rank in rows])


def layout_of(rows: Sequence[ShardSpec]) -> int:
    """Return a number that says which elements of the model a rank holds."""
    return zlib.crc32(repr([row for row in rows if row.name.startswith("model.")]).encode())


def _each_element_once(holders: Mapping[ShardSpec, list[tuple[int, int]]]) -> list[ShardSpec]:
    by_name: dict[str, list[ShardSpec]] = {}
    for row, held in holders.items():
        taken = by_name.setdefault(row.name, [])
        if taken and (row[1:3], row.extent.shape) != (taken[0][1:3], taken[0].extent.shape):
            raise ValueError(
                f"{row.name} is {taken[0].dtype} {taken[0].extent.shape} on rank "
                f"{holders[taken[0]][0][0]}, and {row.dtype} {row.extent.shape} on rank "
                f"{held[0][0]}: these are ranks of several models"
            )
        if not any(row.extent.meets(other.extent) for other in taken):
            taken.append(row)
    for name, taken in by_name.items():
        numel, expected = sum(row.extent.numel for row in taken), math.prod(taken[0].extent.shape)
        if numel != expected:
            raise ValueError(
                f"{name} has {expected} elements, and the ranks of this group hold {numel} of them "
                "in shards that do not overlap: save with the group of all ranks of the job"
            )
    return [row for taken in by_name.values() for row in taken]


def tensors_to_write(
    plan: Plan, rank: int, shards: Sequence[NamedShard]
) -> list[tuple[Header, Tensor]]:
    """Return the tensors that a rank writes: flat, and views of its shards if these are contiguous.

    A tensor that is whole in the file keeps its name and shape.
    """
    found = []
    for number, share in enumerate(plan.shares[rank]):
        row, extent = plan.rows[rank][share.shard], plan.extent(rank, share)
        header: Header = (f"{row.name}/shard {number}", row.dtype, (extent.numel,))
        if extent == Extent.whole(extent.shape):
            header = row.name, row.dtype, extent.shape
        x = shards[share.shard].tensor.detach().reshape(-1)[share.start : share.stop]
        found.append((header, x))
    return found


def make_room(disk: Disk, path: Path) -> None:
    """Remove the copies of a rank's file that interrupted saves have left."""
    for other in path.parent.parent.glob(f"step-*/{path.name}"):
        if other.parent.name.endswith((PARTIAL, REMOVED)) and other != path:
            with suppress(OSError):
                disk.remove(other)


def write_own(
    disk: Disk, path: Path, plan: Plan, rank: int, shards: Sequence[NamedShard]
) -> Written:
    """Write a rank's file from the tensors' own memory. OSError."""
    make_room(disk, path)
    tensors = [(header, x.cpu()) for header, x in tensors_to_write(plan, rank, shards)]
    return write_rank_file(disk, path, [Entry(*header, memory_of(x)) for header, x in tensors])


@dataclass(frozen=True)
class Commit:
    """The second half of a save: from the written files to a checkpoint that counts."""

    folder: Path
    disk: Disk
    plan: Plan
    step: int
    save_id: str
    values: dict[str, Any]
    is_kept: Callable[[int, Sequence[int]], bool]
    """(step, all steps, newest first) -> whether that step's checkpoint stays."""

    @property
    def partial(self) -> Path:
        """The folder's name until all of it is on the disk."""
        return self.folder / f"step-{self.step:08d}-{self.save_id}{PARTIAL}"

    def finish(self, written: Written | Exception, group: Group) -> list[Path]:
        """Commit the save. Every rank calls it. SaveFailed, on every rank, if one could not write.

        Returns when the save counts, with the folders that can be removed now.
        Wire: a few all-gathers of plain data, the longest with a checksum for each shard.
        """
        try:
            mine = agreed(written, SaveFailed, group), zlib.crc32(repr(self.values).encode())
            of_ranks = gather_plain(mine, group)
            _require_same_values([values for _, values in of_ranks])
            manifest = self._manifest([its for its, _ in of_ranks])
            is_leader = agreed(result_or_error(lambda: self._leads(group)), SaveFailed, group)
            for operation in (self._write_manifest, self._rename):
                done = result_or_error(partial(operation, manifest)) if is_leader else None
                agreed(done, SaveFailed, group)
        except SaveFailed:
            remove_folders(self.disk, [self.partial])
            raise
        return self._retire() if is_leader else []

    def _manifest(self, written: list[tuple[list[int], list[int], int]]) -> Manifest:
        tensors = {
            row.name: TensorRecord(row.dtype, row.kind, row.extent.shape, [])
            for rows in self.plan.rows
            for row in rows
        }
        for rank, (offsets, checksums, _) in enumerate(written):
            for share, offset, checksum in zip(
                self.plan.shares[rank], offsets, checksums, strict=True
            ):
                extent = self.plan.extent(rank, share)
                stored = StoredShard(file_of(rank), extent, offset, checksum)
                tensors[self.plan.rows[rank][share.shard].name].shards.append(stored)
        files = {file_of(rank): nbytes for rank, (_, _, nbytes) in enumerate(written)}
        return Manifest(self.step, self.save_id, len(written), files, tensors, self.values)

    def _leads(self, group: Group) -> bool:
        """Return whether this rank is the lowest of those whose files are in this storage."""
        return not any((self.partial / file_of(rank)).exists() for rank in range(group.rank))

    def _write_manifest(self, manifest: Manifest) -> None:
        text = manifest.to_text().encode()
        if len(text) > MOST_BYTES:
            raise ValueError(
                f"the manifest has {len(text)} bytes, and a load reads {MOST_BYTES} at most: there "
                "are too many shards, or an extra state is too large"
            )
        self.disk.write_whole(self.partial / MANIFEST, text)
        self.disk.sync_folder(self.partial)

    def _rename(self, manifest: Manifest) -> None:
        """Rename the folder, so that the save counts in this storage.

        Checkpoints of later steps are removed before: the run was rolled back, and `find` would
        take one of them as the newest. Another checkpoint of this step is removed afterwards.
        """
        names = finished_saves(self.folder)
        self._take_names([name for name in names if step_of(name) > self.step])
        final = self.folder / manifest.folder_name
        self.disk.rename(self.partial, final)
        try:
            self.disk.sync_folder(self.folder)
            self.disk.sync_folder(self.folder.parent)
        except OSError:
            self.disk.rename(final, self.partial)  # else it would count in this storage only
            raise
        if same := [name for name in names if step_of(name) == self.step]:
            self._take_names(same)
            self.disk.sync_folder(self.folder)

    def _take_names(self, names: Sequence[str]) -> None:
        for name in names:
            self.disk.rename(self.folder / name, self.folder / f"{name}{REMOVED}")

    def _retire(self) -> list[Path]:
        """Rename checkpoints that are not kept. Returns all folders that can be removed now."""
        with suppress(OSError):  # the new checkpoint counts anyway
            names = finished_saves(self.folder)
            steps = sorted(map(step_of, names), reverse=True)
            self._take_names([name for name in names if not self.is_kept(step_of(name), steps)])
            return leftovers(self.folder, self.save_id)
        return []


def _require_same_values(of_ranks: Sequence[int]) -> None:
    other = [str(rank) for rank, values in enumerate(of_ranks) if values != of_ranks[0]]
    if other:
        raise SaveFailed(
            f"the optimizer's settings or an extra state of rank {', '.join(other)} are not those "
            "of rank 0, and a checkpoint has one for all ranks: keep numbers that are equal "
            "everywhere, such as samples of the whole job"
        )


def remove_folders(disk: Disk, folders: Sequence[Path]) -> None:
    """Remove folders and their files. The next save removes those that remain after an error."""
    for folder in folders:
        with suppress(OSError):
            for path in folder.iterdir():
                with suppress(FileNotFoundError):  # another rank has removed it
                    disk.remove(path)
            disk.remove_folder(folder)
