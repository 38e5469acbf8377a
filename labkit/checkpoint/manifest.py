"""What a complete checkpoint is, and which ones a folder has.

    checkpoints/
        step-00000040-9f2c11d0/        complete: it has this name since all of it was on the disk
            rank-0000.safetensors      the shards that rank 0 wrote
            rank-0001.safetensors
            manifest.json              every tensor, its shards, their checksums; every file's size
        step-00000050-51b07e66.partial/        never finished: nobody loads it

No pointer says which is the newest, since a pointer can be wrong: `find` in loading.py looks.
Each save has an id of its own, so the halves of two saves of one step are never taken for one. On
hosts without shared storage each host's folder has the files of its ranks, and the manifest names
all of them.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.checkpoint.contents import Kind
from labkit.checkpoint.extent import Extent

MANIFEST = "manifest.json"
PARTIAL = ".partial"
REMOVED = ".removed"
_NAME = re.compile(r"step-\d{8,}-[0-9a-f]{8}")
_FORMAT = "labkit checkpoint, format 1"


class Damaged(RuntimeError):
    """A checkpoint whose bytes are not those that were saved."""


@dataclass(frozen=True)
class StoredShard:
    """A shard in a file: which elements of the tensor, and where."""

    file: str
    extent: Extent
    offset: int
    checksum: int


@dataclass(frozen=True)
class TensorRecord:
    """A whole tensor: dtype as safetensors names it, kind, shape, and where its shards are."""

    dtype: str
    kind: Kind
    shape: tuple[int, ...]
    shards: list[StoredShard]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's table of contents."""

    step: int
    save_id: str
    world_size: int
    files: dict[str, int]
    """Sizes in bytes, by name."""
    tensors: dict[str, TensorRecord]
    values: dict[str, Any] = field(default_factory=dict)
    """Plain data: settings of the optimizer, and what the program added."""

    @property
    def folder_name(self) -> str:
        """The name of its folder."""
        return f"step-{self.step:08d}-{self.save_id}"

    def to_text(self) -> str:
        """As JSON on the second line, and a checksum of it on the first."""
        tensors = {
            name: [
                record.dtype,
                record.kind,
                record.shape,
                [_plain(each) for each in record.shards],
            ]
            for name, record in self.tensors.items()
        }
        body = json.dumps({**vars(self), "tensors": tensors}, separators=(",", ":"))
        head = json.dumps({"format": _FORMAT, "crc32": zlib.crc32(body.encode())})
        return f"{head}\n{body}\n"

    @staticmethod
    def from_text(text: str) -> Manifest:
        """The manifest of a text of `to_text`. Damaged where the checksum differs."""
        head, _, body = text.partition("\n")
        body = body.removesuffix("\n")
        expected = re.search(r'"crc32": (\d+)', head)
        if not expected or int(expected[1]) != zlib.crc32(body.encode()):
            raise Damaged("other bytes than were saved")
        plain = json.loads(body)
        tensors = {
            name: TensorRecord(dtype, kind, tuple(shape), [_shard(row) for row in rows])
            for name, (dtype, kind, shape, rows) in plain["tensors"].items()
        }
        return Manifest(**{**plain, "tensors": tensors})

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Of a checkpoint's folder. Damaged where it is not what was written; OSError."""
        path = folder / MANIFEST
        try:
            return Manifest.from_text(path.read_text(encoding="utf-8", errors="replace"))
        except Damaged as error:
            raise Damaged(f"{path}: {error}") from None


def _plain(shard: StoredShard) -> list[Any]:
    return [shard.file, shard.extent.to_plain(), shard.offset, shard.checksum]


def _shard(row: list[Any]) -> StoredShard:
    file, extent, offset, checksum = row
    return StoredShard(file, Extent.from_plain(extent), offset, checksum)


def step_of(name: str) -> int:
    """The step in the name of a finished save's folder."""
    return int(name.split("-")[1])


def finished_saves(folder: Path) -> list[str]:
    """The names of the folders of finished saves, oldest first; none where there is no folder."""
    if not folder.is_dir():
        return []
    found = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda name: (step_of(name), name))


def leftovers(folder: Path, save_id: str) -> list[Path]:
    """What interrupted saves and removals have left, but for the save `save_id`."""
    return [
        path
        for path in folder.glob("step-*")
        if path.name.endswith((PARTIAL, REMOVED)) and save_id not in path.name
    ]


def files_here(folder: Path, manifest: Manifest) -> set[str]:
    """Which of a checkpoint's files are in its folder on this host, in full length."""
    found = set()
    for name, nbytes in manifest.files.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == nbytes:
            found.add(name)
    return found
