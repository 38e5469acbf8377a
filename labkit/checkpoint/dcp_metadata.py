"""The table of contents of a DCP folder, read without running anything from it.

`.metadata` is a pickle, and unpickling runs code in it: the writer of the folder can run any
program on the reader's machine. A pickle is a list of operations for a machine with a stack:

    STACK_GLOBAL  torch Size     find a class or a function by its name
    TUPLE         (5, 4)
    REDUCE                       call it with these arguments

This reader has such a stack, but imports nothing and calls nothing. A name stays a name, and a call
is only noted. Only the few names that torch itself writes into this file are allowed. Any other
name or operation is UntrustedMetadata. The notes are then checked field by field, and this module
makes torch's objects from them.

torch.load(..., weights_only=True) works in the same way, for files of torch.save.
"""

from __future__ import annotations

import math
import pickletools
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from labkit.checkpoint.manifest import Damaged, require_shape

MOST_BYTES = 32 << 20
"""Most bytes of `.metadata`: each byte can become an object of 64 bytes."""

_OF_METADATA = "torch.distributed.checkpoint.metadata"
_OF_FILES = "torch.distributed.checkpoint.filesystem"
_OF_SHARDS = "torch.distributed._shard.sharded_tensor.metadata"  # before torch 2.3
_NAMES = {
    *(
        (_OF_METADATA, name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    *((_OF_FILES, name) for name in ("_StorageInfo", "_StoragePrefix")),
    *((_OF_SHARDS, name) for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    ("torch", "Size"),
    ("torch", "strided"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "getattr"),  # a member of an enum, as Python 3.11.0 to 3.11.3 write it
    *(
        (module, name)
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
    ),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_EMPTY: dict[str, Any] = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


class UntrustedMetadata(ValueError):
    """A `.metadata` that can only be unpickled, in a folder that is not trusted."""


@dataclass(frozen=True)
class _Name:
    """Name of a class or a function, which is not looked up."""

    module: str
    name: str


@dataclass(eq=False)
class _Call:
    """A call that the pickle asks for: function, arguments, and the state of the result.

    Messages leave out the last two: a few bytes can nest one tuple a billion times.
    """

    of: _Name
    arguments: tuple[Any, ...] = field(repr=False)
    state: Any = field(default=None, repr=False)


def read_metadata(folder: Path, data: bytes) -> dcp.Metadata:
    """Return the metadata in the bytes of `.metadata`. UntrustedMetadata; Damaged if invalid."""
    path = folder / ".metadata"
    if len(data) > MOST_BYTES:
        _refuse(path, f"it has {len(data)} bytes, more than {MOST_BYTES}")
    try:
        found = _noted(path, data)
        return _Metadata(found).made()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, Damaged) as error:
        if isinstance(error, UntrustedMetadata):
            raise
        text = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {error}"
        raise Damaged(f"{path} is no metadata of DCP, or not all of it: {text:.200}") from None


def _refuse(path: Path, why: str) -> NoReturn:
    raise UntrustedMetadata(
        f"{path}: {why}. Unpickling it can run any program on this machine. If you know who wrote "
        "the folder, give load_dcp(..., trust=True); else load it where nothing can be lost, and "
        "save it again with dcp.save"
    )


def _noted(path: Path, data: bytes) -> Any:
    """Return a pickle's content as plain data, names and noted calls."""
    machine = _Machine(path)
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "STOP":
            return machine.stack.pop()
        if operation.name not in ("PROTO", "FRAME"):
            machine.perform(operation.name, argument)
    raise ValueError("it has no end")


class _Machine:
    """A pickle's stack and memo."""

    def __init__(self, path: Path) -> None:
        self.stack: list[Any] = []
        self._path = path
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def perform(self, name: str, argument: Any) -> None:
        """Perform one operation. UntrustedMetadata for one that torch does not write."""
        stack = self.stack
        if name in _ARGUMENTS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self._memo[len(self._memo) if argument is None else int(argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            pair = argument.split(" ") if name == "GLOBAL" else self._taken(2)
            stack.append(_name(self._path, *pair))
        elif name in ("REDUCE", "NEWOBJ"):
            called, arguments = self._taken(2)
            stack.append(_Call(_of_kind(called, _Name), _of_kind(arguments, tuple)))
        elif name == "BUILD":
            state = stack.pop()
            _of_kind(stack[-1], _Call).state = state
        else:
            self._gather(name)

    def _gather(self, name: str) -> None:
        """Put the values on the stack into a tuple, a list or a dict."""
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self.stack.append(tuple(self._taken(int(name[-1]))))
        elif name == "TUPLE":
            self.stack.append(tuple(self._behind_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._taken(1) if name == "APPEND" else self._behind_mark()
            _of_kind(self.stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._taken(2) if name == "SETITEM" else self._behind_mark()
            for key in items[::2]:
                if not isinstance(key, str | _Call):  # a tuple of tuples can take hours to hash
                    raise TypeError(f"{reprlib.repr(key)} is no key")
            _of_kind(self.stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        else:
            _refuse(self._path, f"it has the operation {name}, which torch does not write there")

    def _taken(self, count: int) -> list[Any]:
        at = len(self.stack) - count
        if at < 0:
            raise IndexError("its stack is empty")
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def _behind_mark(self) -> list[Any]:
        return self._taken(len(self.stack) - self._marks.pop())


def _name(path: Path, module: str, name: str) -> _Name:
    is_dtype = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
    if not is_dtype and (module, name) not in _NAMES:
        shown = reprlib.repr(f"{module}.{name}")
        _refuse(path, f"it names {shown}, which torch does not write there")
    return _Name(module, name)


def _of_kind(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{reprlib.repr(value)} is no {kind.__name__.strip('_').lower()}")
    return value


class _Metadata:
    """Makes torch's objects from what `_noted` has found.

    Each tensor must have a list of chunks of its own: many that share one take hours to check.
    """

    def __init__(self, found: Any) -> None:
        self._state = _state_of(found, "Metadata")
        self._lists: set[int] = set()

    def made(self) -> dcp.Metadata:
        """Return the metadata. Damaged, or the error of a missing item."""
        rows = _of_kind(self._state["state_dict_metadata"], dict)
        files = _of_kind(self._state["storage_data"], dict)
        return dcp.Metadata(
            {_text(name): self._row(name, row) for name, row in rows.items()},
            storage_data={_index(key): _place(info) for key, info in files.items()},
        )

    def _row(self, name: str, row: Any) -> TensorStorageMetadata | BytesStorageMetadata:
        if _of_kind(row, _Call).of.name == "BytesStorageMetadata":
            return BytesStorageMetadata()
        state = _state_of(row, "TensorStorageMetadata")
        properties = _state_of(state["properties"], "TensorProperties")
        dtype = vars(torch)[_of_kind(properties[0], _Name).name]
        if not isinstance(dtype, torch.dtype):
            raise Damaged(f"the dtype of {name!r:.80} is {dtype!r:.80}")
        size, chunks = _size(state["size"]), _of_kind(state["chunks"], list)
        if id(chunks) in self._lists:
            raise Damaged(f"the chunks of {name!r:.80} are those of another tensor, too")
        self._lists.add(id(chunks))
        made = [_chunk(name, each, size) for each in chunks]
        return TensorStorageMetadata(TensorProperties(dtype), size, made)


def _state_of(call: Any, name: str) -> Any:
    if _of_kind(call, _Call).of.name != name:
        raise Damaged(f"there is a {call.of.name} where a {name} belongs")
    return call.state


def _text(value: Any) -> str:
    text: str = _of_kind(value, str)
    if len(text) > 1000 or not text.isprintable():
        raise Damaged(f"{reprlib.repr(text)} is no name of a tensor")
    return text


def _size(value: Any) -> torch.Size:
    if _of_kind(value, _Call).of != _Name("torch", "Size") or len(value.arguments) != 1:
        raise Damaged(f"{reprlib.repr(value)} is no torch.Size")
    sizes = list(_of_kind(value.arguments[0], tuple))
    require_shape("a size", sizes)
    return torch.Size(sizes)


def _chunk(name: str, call: Any, size: torch.Size) -> ChunkStorageMetadata:
    state = _state_of(call, "ChunkStorageMetadata")
    offsets, sizes = _size(state["offsets"]), _size(state["sizes"])
    is_inside = len(offsets) == len(sizes) == len(size)
    if not is_inside or any(
        a + n > whole for a, n, whole in zip(offsets, sizes, size, strict=True)
    ):
        raise Damaged(f"a chunk of {name!r:.80}, {offsets} {sizes}, is not inside of {size}")
    return ChunkStorageMetadata(offsets, sizes)


def _index(call: Any) -> MetadataIndex:
    state = _state_of(call, "MetadataIndex")
    offset = state.get("offset")
    return MetadataIndex(_text(state["fqn"]), None if offset is None else _size(offset))


def _place(call: Any) -> _StorageInfo:
    state: dict[str, Any] = _state_of(call, "_StorageInfo")
    path, offset, length = state["relative_path"], state["offset"], state["length"]
    if state.get("transform_descriptors"):
        raise Damaged("its files are compressed or encrypted")
    return _StorageInfo(_of_kind(path, str), _of_kind(offset, int), _of_kind(length, int))


def require_sizes(folder: Path, metadata: dcp.Metadata) -> None:
    """Raise Damaged if the tensors have more bytes than the folder, before one is allocated."""
    rows = metadata.state_dict_metadata.values()
    tensors = [row for row in rows if isinstance(row, TensorStorageMetadata)]
    expected = sum(bytes_of(row, row.size) for row in tensors)
    found = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    if expected > found:
        raise Damaged(
            f"{folder / '.metadata'} tells of {expected} bytes of tensors, and the files beside it "
            f"have {found}"
        )


def require_in_folder(folder: Path, info: Any, least: int) -> None:
    """Raise Damaged if a value's place is not in a file of the folder itself. least: its bytes."""
    name = info.relative_path
    path = folder / name
    if not _FILE.fullmatch(name) or path.is_symlink() or not path.is_file():
        raise Damaged(f"{folder / '.metadata'} names {name!r:.200}, which is no file of its folder")
    nbytes = path.stat().st_size
    if not (least <= info.length and 0 <= info.offset <= nbytes - info.length):
        raise Damaged(
            f"{folder / '.metadata'} has {info.length} bytes from {info.offset} on in {name}, "
            f"which has {nbytes}; this value needs {least} of them"
        )


def require_each_element_once(name: str, runs: list[tuple[int, int]], numel: int) -> None:
    """Raise Damaged unless chunks have each element of a shard once. runs: begin and length."""
    end = 0
    for begin, length in sorted(runs):
        if begin != end:
            raise Damaged(
                f"element {min(begin, end)} of a shard of {name} is in no chunk or in two"
            )
        end += length
    if end != numel:
        raise Damaged(f"element {end} of a shard of {name} is in no chunk")


def bytes_of(row: TensorStorageMetadata, sizes: torch.Size) -> int:
    """Return the bytes of a chunk."""
    return math.prod(sizes) * row.properties.dtype.itemsize


def kept(mapping: Mapping[Any, Any], index: MetadataIndex) -> Any:
    """Return the place of a value. Damaged if the metadata does not have it."""
    if index not in mapping:
        raise Damaged(f"the metadata does not say in which file {index.fqn} is")
    return mapping[index]
