"""The disks that a power cut can leave, from a record of the operations before it.

    operations          create a, write a, sync a, rename x -> y | cut
    certainly there     a's bytes, under a's name if its folder was synced
    may be there        the name y instead of x; a's bytes, if they were not synced

A killed process loses less: the kernel keeps its writes. After a power cut a file has its synced
bytes, and all, none or a part of its later writes. A folder has its synced names, and each later
change of a name may be there or not. A rename is one change.

`operations` reads the record of all processes of a save. `PowerCut` performs some of the operations
on a model of a disk, and `write_survivors` writes what remains into a real folder, for a real load.
`cuts` does so after every operation.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Operation(NamedTuple):
    """One operation on a file or folder, with the time of its end."""

    at_ns: int
    kind: str
    path: Path
    rest: str
    """Bytes of a write, in hexadecimal, or the new path of a rename."""


def operations(logs: Iterable[Path]) -> list[Operation]:
    """Return the operations of RecordedDisks of one machine, in the order of time."""
    lines = (json.loads(line) for log in logs for line in log.read_text().splitlines())
    return sorted(Operation(at_ns, kind, Path(path), rest) for at_ns, kind, path, rest in lines)


@dataclass(eq=False)
class _File:
    data: bytes = b""
    synced: bytes = b""

    def after(self, choice: random.Random | bool) -> bytes:
        if isinstance(choice, bool):
            return self.data if choice else self.synced
        lengths = sorted((len(self.synced), len(self.data)))
        return max(self.data, self.synced, key=len)[: choice.randint(*lengths)]


@dataclass(eq=False)
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[dict[str, _File | _Folder | None]] = field(default_factory=list)
    """Since it was synced: names with what they mean from then on; None: nothing."""

    def change(self, change: dict[str, _File | _Folder | None]) -> None:
        self.changes.append(change)
        _apply(change, self.names)

    def after(self, choice: random.Random | bool) -> dict[str, _File | _Folder]:
        if isinstance(choice, bool):
            return self.names if choice else self.synced
        names = dict(self.synced)
        for change in self.changes:
            if choice.random() < 0.5:
                _apply(change, names)
        return names


def _apply(change: dict[str, _File | _Folder | None], names: dict[str, _File | _Folder]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class PowerCut:
    """A disk on which these operations were performed, all below `root`, when the power fails.

    root: a folder that was there, and empty, before the first.
    """

    def __init__(self, root: Path, performed: Iterable[Operation]) -> None:
        self._root, self._top = root, _Folder()
        for operation in performed:
            self._perform(operation)

    def _perform(self, operation: Operation) -> None:
        path, name = operation.path, operation.path.name
        match operation.kind:
            case "make_folder" if name not in self._folder(path.parent).names:
                self._folder(path.parent).change({name: _Folder()})
            case "create":
                self._folder(path.parent).change({name: _File()})
            case "write":
                self._file(path).data += bytes.fromhex(operation.rest)
            case "truncate":
                length = int(bytes.fromhex(operation.rest))
                self._file(path).data = self._file(path).data[:length]
            case "sync":
                self._file(path).synced = self._file(path).data
            case "sync_folder" if path.is_relative_to(self._root):
                folder = self._folder(path)
                folder.synced, folder.changes = dict(folder.names), []
            case "rename":
                folder, new = self._folder(path.parent), Path(operation.rest).name
                folder.change({name: None, new: folder.names[name]})
            case "remove" | "remove_folder":
                self._folder(path.parent).change({name: None})

    def _node(self, path: Path) -> _File | _Folder:
        node: _File | _Folder = self._top
        for name in path.relative_to(self._root).parts:
            assert isinstance(node, _Folder)
            node = node.names[name]
        return node

    def _folder(self, path: Path) -> _Folder:
        node = self._node(path)
        assert isinstance(node, _Folder)
        return node

    def _file(self, path: Path) -> _File:
        node = self._node(path)
        assert isinstance(node, _File)
        return node

    def surviving_files(
        self, data: random.Random | bool, names: random.Random | bool
    ) -> dict[str, bytes]:
        """Return the files that are left in `root` itself, by name; see `write_survivors`."""
        nodes = self._top.after(names).items()
        return {name: node.after(data) for name, node in nodes if isinstance(node, _File)}

    def write_survivors(
        self, into: Path, data: random.Random | bool, names: random.Random | bool
    ) -> None:
        """Write what is left into the folder `into`, which must not exist.

        data, names: keep what was not synced (True), drop it (False), or draw for each one.
        """
        _write(self._top, into, data, names)


def _write(
    folder: _Folder, into: Path, data: random.Random | bool, names: random.Random | bool
) -> None:
    into.mkdir()
    for name, node in folder.after(names).items():
        if isinstance(node, _Folder):
            _write(node, into / name, data, names)
        else:
            (into / name).write_bytes(node.after(data))


class Cut(NamedTuple):
    """A power cut, and what it has left."""

    num_performed: int
    way: str
    left: Path
    """A folder with what `root` had, which is there until the last cut."""


def cuts(root: Path, performed: Sequence[Operation]) -> Iterator[Cut]:
    """Cut the power after each operation, in four ways, which differ in the unsynced part kept.

    "all kept" is what a kill of the process leaves. root: see PowerCut.
    """
    chance = random.Random(0)
    ways: dict[str, tuple[random.Random | bool, random.Random | bool]] = {
        "all kept": (True, True),
        "names lost": (True, False),
        "bytes lost": (False, True),
        "by chance": (chance, chance),
    }
    with tempfile.TemporaryDirectory() as name:
        for count in range(1, len(performed) + 1):
            for way, (data, names) in ways.items():
                left = Path(name, f"{count} {way}")
                PowerCut(root, performed[:count]).write_survivors(left, data, names)
                yield Cut(count, way, left)
