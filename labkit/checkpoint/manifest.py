"""The manifest: the content of a complete checkpoint, and the checkpoints of a folder.

    checkpoints/
        step-00000040-9f2c11d0/        complete: it got this name when all of it was on the disk
            rank-0000.safetensors      the shards that rank 0 wrote
            rank-0001.safetensors
            manifest.json              every tensor, its shards, their checksums; every file's size
        step-00000050-51b07e66.partial/        never finished, and never loaded

No file names the newest checkpoint, since such a pointer can be wrong: `find` in loading.py lists
the folder. Each save has an id of its own, so the halves of two saves of one step are never mixed.
Without shared storage each host's folder has the files of its ranks, and the manifest names all of
them.

A folder may come from strangers, so a manifest is checked. It may name only files of its own
folder, by the names that `save` gives. Each shard must lie inside its file, and no two shards may
share a byte. So every size has its bytes on the disk, and a load takes no more memory than these.
Anything else is Damaged, with the place in the manifest and the value.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import torch

from labkit.shards import Extent, Kind

MANIFEST = "manifest.json"
PARTIAL = ".partial"
REMOVED = ".removed"
_NAME = re.compile(r"step-[0-9]{8,}-[0-9a-f]{8}")
_SAVE_ID = re.compile(r"[0-9a-f]{8}")
_FORMAT = "labkit checkpoint, format 1"
MOST_BYTES = 64 << 20
"""Most bytes of a manifest: a longer one is neither written nor parsed."""
_MOST = 2**63 - 1
_MOST_DIMS, _MOST_LETTERS = 64, 1000
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
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
"""safetensors' names."""


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxdict, _REPR.maxstring = 2, 3, 120


def _shown(value: Any) -> str:
    """Return a value in a message: short, and on one line."""
    return _REPR.repr(value)


class Damaged(RuntimeError):
    """A checkpoint whose bytes are not those that were saved."""


class DoesNotFit(ValueError):
    """A checkpoint of another model. Nothing was loaded."""


@dataclass(frozen=True)
class StoredShard:
    """A shard in a file: its elements of the tensor, and their place."""

    file: str
    extent: Extent
    offset: int
    checksum: int


@dataclass(frozen=True)
class TensorRecord:
    """A whole tensor: dtype by safetensors' name, kind, shape, and its shards."""

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
        """Return JSON on the second line, and its checksum on the first."""
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
        """Parse a text of `to_text`. Damaged for any other text."""
        head, _, body = text.partition("\n")
        body = body.removesuffix("\n")
        expected = re.search(r'"crc32": ([0-9]+)', head)
        if not expected or expected[1] != str(zlib.crc32(body.encode())):
            raise Damaged("other bytes than were saved")
        if f'"format": "{_FORMAT}"' not in head:
            raise Damaged(f"its first line is {_shown(head)}, and this labkit reads {_FORMAT}")
        try:
            plain = json.loads(body)
        except RecursionError:
            raise Damaged("it is nested too deeply for JSON that labkit writes") from None
        except ValueError as error:  # no JSON, or a number of thousands of digits
            raise Damaged(f"it is no JSON: {error}") from None
        return _manifest_of(plain)

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read the manifest of a checkpoint's folder. Damaged if it was changed; OSError."""
        path = folder / MANIFEST
        try:
            if (nbytes := _size_of(path)) > MOST_BYTES:
                raise Damaged(f"it has {nbytes} bytes, more than the {MOST_BYTES} of any manifest")
            found = Manifest.from_text(path.read_text(encoding="utf-8", errors="replace"))
            if found.folder_name != folder.name.removesuffix(PARTIAL):
                raise Damaged(f"it is the manifest of {found.folder_name}")
        except Damaged as error:
            raise Damaged(f"{path}: {error}") from None
        return found


def file_of(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:04d}.safetensors"


def _plain(shard: StoredShard) -> list[Any]:
    return [shard.file, shard.extent.to_plain(), shard.offset, shard.checksum]


def _size_of(path: Path) -> int:
    """Return the bytes of a checkpoint's file. Damaged for anything but a regular file; OSError."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise Damaged(
            f"{path.name} is a symbolic link, and a checkpoint's files lie in its own folder: "
            "copy the file there, with `cp -L`"
        )
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.name} is no file")
    return status.st_size


def _require(is_right: bool, where: str, value: Any, belongs: str) -> None:
    if not is_right:
        raise Damaged(f"{where} is {_shown(value)}, where {belongs} belongs")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_LETTERS and value.isprintable()


def _is_whole(value: Any, least: int = 0, most: int = _MOST) -> bool:
    return type(value) is int and least <= value <= most


def _manifest_of(plain: Any) -> Manifest:
    """Return the manifest of untrusted plain data. Damaged, with the place in it."""
    names = [each.name for each in fields(Manifest)]
    is_complete = isinstance(plain, dict) and plain.keys() == set(names)
    _require(is_complete, "the second line", plain, f"an object of {', '.join(names)} alone")
    _require(_is_whole(plain["step"]), "step", plain["step"], "a number of steps")
    save_id, files = plain["save_id"], plain["files"]
    is_id = isinstance(save_id, str) and _SAVE_ID.fullmatch(save_id)
    _require(bool(is_id), "save_id", save_id, "a text of 8 hexadecimal digits")
    world_size = plain["world_size"]
    is_right = isinstance(files, dict) and _is_whole(world_size, 1) and len(files) == world_size
    _require(is_right, "world_size", world_size, "the number of files")
    for rank, (name, nbytes) in enumerate(sorted(files.items(), key=_by_length)):
        _require(name == file_of(rank), "a file", name, f"{file_of(rank)}, in this folder,")
        _require(_is_whole(nbytes), f"the size of {name}", nbytes, "a number of bytes")
    rows = plain["tensors"]
    _require(isinstance(rows, dict), "tensors", rows, "an object")
    for name in rows:
        _require(_is_name(name), "the name of a tensor", name, "a short text of printable letters")
    tensors = {name: _record(name, row, files) for name, row in rows.items()}
    require_own_bytes(tensors)
    _require_values(plain["values"])
    return Manifest(**{**plain, "tensors": tensors})


def _by_length(item: tuple[str, int]) -> tuple[int, str]:
    """Return a sort key by which rank-10000 comes after rank-9999."""
    return len(item[0]), item[0]


def _record(name: str, row: Any, files: Mapping[str, int]) -> TensorRecord:
    where = f"tensors[{_shown(name)}]"
    is_row = isinstance(row, list) and len(row) == 4
    _require(is_row, where, row, "a list of dtype, kind, shape and shards")
    dtype, kind, shape, rows = row
    is_dtype = isinstance(dtype, str) and dtype in TORCH_DTYPES
    _require(is_dtype, f"the dtype of {where}", dtype, f"one of {', '.join(TORCH_DTYPES)}")
    is_kind = isinstance(kind, str) and kind in get_args(Kind)
    _require(is_kind, f"the kind of {where}", kind, f"one of {', '.join(get_args(Kind))}")
    require_shape(f"the shape of {where}", shape)
    scalar = {"int": "I64", "float": "F64"}.get(kind)
    if scalar:
        is_scalar = not shape and dtype == scalar
        _require(is_scalar, f"{where}, an {kind},", [dtype, shape], f"{scalar} without dims")
    _require(isinstance(rows, list), f"the shards of {where}", rows, "a list")
    shards = [
        _shard(f"shard {number} of {where}", each, shape, TORCH_DTYPES[dtype].itemsize, files)
        for number, each in enumerate(rows)
    ]
    numel, stored = math.prod(shape), sum(each.extent.numel for each in shards)
    if stored != numel:
        raise Damaged(f"{where} has the shape {shape}, {numel} elements, and its shards {stored}")
    return TensorRecord(dtype, kind, tuple(shape), shards)


def require_shape(where: str, shape: Any) -> None:
    """Raise Damaged for an impossible shape of a tensor."""
    is_list = isinstance(shape, list) and len(shape) <= _MOST_DIMS and all(map(_is_whole, shape))
    is_shape = is_list and math.prod(max(n, 1) for n in shape) <= _MOST
    _require(is_shape, where, shape, "a list of sizes")


def _shard(
    where: str, row: Any, shape: list[int], itemsize: int, files: Mapping[str, int]
) -> StoredShard:
    is_row = isinstance(row, list) and len(row) == 4
    _require(is_row, where, row, "a list of file, extent, offset and checksum")
    file, extent, offset, checksum = row
    is_file = isinstance(file, str) and file in files
    _require(is_file, f"the file of {where}", file, "one of the manifest's files")
    found = _extent(f"the extent of {where}", extent, shape)
    nbytes = found.numel * itemsize
    is_offset = _is_whole(offset) and offset + nbytes <= files[file]
    inside = f"a place for {nbytes} bytes in the {files[file]} of {file}"
    _require(is_offset, f"the offset of {where}", offset, inside)
    _require(_is_whole(checksum, most=2**32 - 1), f"the checksum of {where}", checksum, "a CRC-32")
    return StoredShard(file, found, offset, checksum)


def _extent(where: str, plain: Any, shape: list[int]) -> Extent:
    is_extent = isinstance(plain, list) and len(plain) == 4 and plain[0] == shape
    _require(is_extent, where, plain, f"a list of shape {shape}, box, start and stop")
    _, box, start, stop = plain
    is_box = isinstance(box, list) and len(box) == len(shape) and all(map(_is_pair, box))
    is_box = is_box and all(last <= n for (_, last), n in zip(box, shape, strict=True))
    _require(is_box, f"the box of {where}", box, f"one inside of {shape}")
    numel = math.prod(last - first for first, last in box)
    is_range = _is_pair([start, stop]) and stop <= numel
    _require(is_range, f"start and stop of {where}", [start, stop], f"a range of {numel} elements")
    return Extent.from_plain(plain)


def _is_too_large(value: Any) -> bool:
    return type(value) is int and abs(value) > _MOST


def _is_pair(pair: Any) -> bool:
    """Return whether it is two indices, in order."""
    is_pair = isinstance(pair, list) and len(pair) == 2 and all(map(_is_whole, pair))
    return is_pair and pair[0] <= pair[1]


def require_own_bytes(tensors: Mapping[str, TensorRecord]) -> None:
    """Raise Damaged if two shards share a byte: a small file could then fill all memory."""
    ranges = sorted(
        (each.file, each.offset, each.offset + nbytes, name)
        for name, record in tensors.items()
        for each in record.shards
        if (nbytes := each.extent.numel * TORCH_DTYPES[record.dtype].itemsize)
    )
    for one, other in zip(ranges, ranges[1:], strict=False):
        if one[0] == other[0] and other[1] < one[2]:
            names = f"{_shown(one[3])} and {_shown(other[3])}"
            raise Damaged(f"{names} both have byte {other[1]} of {one[0]}")


def require_each_element_once(folder: Path, name: str, record: TensorRecord) -> None:
    """Raise Damaged if an element of a tensor is in no shard of a checkpoint, or in two."""
    whole = Extent.whole(record.shape)
    end = 0
    for run in sorted(run for each in record.shards for run in whole.overlaps(each.extent)):
        if run.here != end:
            which = "in no shard" if run.here > end else "in two shards"
            raise Damaged(f"{folder / MANIFEST}: element {min(end, run.here)} of {name} is {which}")
        end += run.numel


def _require_values(values: Any) -> None:
    names = {"settings", "optimizer", "extra", "layout"}
    is_complete = isinstance(values, dict) and values.keys() == names
    _require(is_complete, "values", values, f"an object of {', '.join(sorted(names))} alone")
    optimizer, settings = values["optimizer"], values["settings"]
    is_name = optimizer is None or _is_name(optimizer)
    _require(is_name, "values.optimizer", optimizer, "the name of a class, or null,")
    is_list = isinstance(settings, list) and all(isinstance(group, dict) for group in settings)
    _require(is_list, "values.settings", settings, "a list of objects")
    for key, value in (item for group in settings for item in group.items()):
        each = value if isinstance(value, list) else [value]
        is_plain = not any(isinstance(one, list | dict) or _is_too_large(one) for one in each)
        _require(is_plain, f"the setting {key!r:.80}", value, "a value or a list of values")
    _require(isinstance(values["extra"], dict), "values.extra", values["extra"], "an object")
    _require(isinstance(values["layout"], list), "values.layout", values["layout"], "a list")


def step_of(name: str) -> int:
    """Return the step in the name of a finished save's folder."""
    return int(name.split("-")[1])


def finished_saves(folder: Path) -> list[str]:
    """Return the folder names of finished saves, oldest first; [] if there is no folder."""
    if not folder.is_dir():
        return []
    found = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda name: (step_of(name), name))


def leftovers(folder: Path, save_id: str) -> list[Path]:
    """Return folders that interrupted saves and removals have left, except save `save_id`'s."""
    return [
        path
        for path in folder.glob("step-*")
        if path.name.endswith((PARTIAL, REMOVED)) and save_id not in path.name
    ]


def files_here(folder: Path, manifest: Manifest) -> set[str]:
    """Return the names of a checkpoint's files that are on this host in full length.

    Damaged for a link: an untrusted folder may have one to any file of this host.
    """
    found = set()
    for name, nbytes in manifest.files.items():
        with suppress(FileNotFoundError):
            if _size_of(folder / name) == nbytes:
                found.add(name)
    return found
