"""Durable file operations, and one file of a checkpoint: a rank's shard in the safetensors format.

    write      bytes into a new file        a crash of the machine may lose any of them
    sync       the file, on the disk        now they stay
    rename     the finished folder          a crash may undo it
    sync       the folder that it is in     now it stays

A killed process loses nothing that it has written, since the page cache belongs to the kernel. A
power cut loses writes that were not synced. File names belong to the folder, which has a sync of
its own.

File: 8 bytes with the length of the header, the header as JSON, the tensors' bytes one after the
other. `safetensors.torch.load_file` reads it. The lab writes it itself, to record each operation,
and to compute checksums while the bytes are in the processor's cache.

This module only imports the standard library. Run as a program, it is the process that writes while
its rank trains (async_save.py).
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = 4 << 20
"""Bytes that are checksummed and written at a time."""


class Entry(NamedTuple):
    """A tensor in a file: its name there, safetensors' name of its dtype, shape, and bytes."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: memoryview


class Written(NamedTuple):
    """Offsets and checksums of a file's entries, and the size of the file."""

    offsets: list[int]
    checksums: list[int]
    nbytes: int


class OpenFile(NamedTuple):
    """A file that is being written."""

    path: Path
    descriptor: int


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the path to an OSError of an open file, which the system leaves out."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


class Disk:
    """The file operations of a save, a method for each.

    Errors are the operating system's: OSError with the path.
    """

    def note(self, operation: str, path: Path, payload: bytes | memoryview | Path = b"") -> None:
        """Hook for each operation. payload: bytes written, or the new name; see RecordedDisk."""

    def make_folder(self, path: Path) -> None:
        """Create a folder, and those above it, durably; it may exist."""
        if path.exists():
            return
        self.make_folder(path.parent)
        self.note("make_folder", path)  # noted first, since another rank may use the folder at once
        try:
            path.mkdir()
        except FileExistsError:  # made by another rank, which syncs it
            return
        self.sync_folder(path.parent)

    def create(self, path: Path) -> OpenFile:
        """Create an empty file to write into. An old one of this name is emptied."""
        file = OpenFile(path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        self.note("create", path)
        return file

    def open_to_append(self, path: Path) -> OpenFile:
        """Open a file to append to it; create it durably if there is none."""
        if not path.exists():
            self.close(self.create(path))
        self.sync_folder(
            path.parent
        )  # also if an earlier process was killed after it created the file
        return OpenFile(path, os.open(path, os.O_WRONLY | os.O_APPEND))

    def truncate(self, file: OpenFile, nbytes: int) -> None:
        """Cut a file to its first `nbytes` bytes."""
        with _named(file.path):
            os.ftruncate(file.descriptor, nbytes)
        self.note("truncate", file.path, str(nbytes).encode())

    def write(self, file: OpenFile, data: bytes | memoryview) -> None:
        """Append to a file."""
        rest = memoryview(data).cast("B")
        while rest:
            with _named(file.path):
                count = os.write(file.descriptor, rest)
            self.note("write", file.path, rest[:count])
            rest = rest[count:]

    def sync(self, file: OpenFile) -> None:
        """Wait until the file's bytes are on the disk."""
        with _named(file.path):
            os.fsync(file.descriptor)
        self.note("sync", file.path)

    def close(self, file: OpenFile) -> None:
        """Close the file."""
        os.close(file.descriptor)

    def write_whole(self, path: Path, data: bytes | memoryview) -> None:
        """Write a new file with these bytes, and sync it."""
        file = self.create(path)
        try:
            self.write(file, data)
            self.sync(file)
        finally:
            self.close(file)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.note("sync_folder", path)

    def rename(self, path: Path, new: Path) -> None:
        """Rename a file or a folder atomically."""
        path.rename(new)
        self.note("rename", path, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()
        self.note("remove", path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()
        self.note("remove_folder", path)


class RecordedDisk(Disk):
    """Appends each operation, with its time and its bytes, to a log: see power_cut.py.

    kill_after: end the process with SIGKILL after this many operations; None: never.
    """

    def __init__(self, log: Path, kill_after: int | None = None) -> None:
        self.log, self._left = log, kill_after

    def note(self, operation: str, path: Path, payload: bytes | memoryview | Path = b"") -> None:
        """Append one line of JSON."""
        text = str(payload) if isinstance(payload, Path) else bytes(payload).hex()
        with self.log.open("a") as log:
            print(json.dumps([time.monotonic_ns(), operation, str(path), text]), file=log)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def write_rank_file(disk: Disk, path: Path, entries: Sequence[Entry]) -> Written:
    """Write one safetensors file, synced, and make its folder.

    Its name is durable when the folder is synced, too.
    """
    disk.make_folder(path.parent)
    header: dict[str, Any] = {}
    end = 0
    for entry in entries:
        begin, end = end, end + entry.data.nbytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
    begin = 8 + len(text)
    offsets = [begin + header[entry.name]["data_offsets"][0] for entry in entries]
    file = disk.create(path)
    try:
        disk.write(file, len(text).to_bytes(8, "little") + text)
        checksums = [_write_checked(disk, file, entry.data) for entry in entries]
        disk.sync(file)
    finally:
        disk.close(file)
    return Written(offsets, checksums, begin + end)


def _write_checked(disk: Disk, file: OpenFile, data: memoryview) -> int:
    checksum, data = 0, data.cast("B")
    for begin in range(0, len(data), BLOCK):
        block = data[begin : begin + BLOCK]
        checksum = zlib.crc32(block, checksum)
        disk.write(file, block)
    return checksum


def read_into(file: int, offset: int, into: memoryview) -> None:
    """Fill `into` with the bytes from `offset` on. EOFError if the file ends before."""
    while into:
        count = os.preadv(file, [into], offset)
        if not count:
            raise EOFError(f"the file ends at byte {offset}")
        into, offset = into[count:], offset + count


def checksum_of(file: int, offset: int, nbytes: int) -> int:
    """Return the CRC-32 of some bytes of a file, as in `Written.checksums`."""
    checksum, buffer = 0, memoryview(bytearray(min(nbytes, BLOCK)))
    for begin in range(0, nbytes, BLOCK):
        block = buffer[: min(BLOCK, nbytes - begin)]
        read_into(file, offset + begin, block)
        checksum = zlib.crc32(block, checksum)
    return checksum


def serve(descriptor: int) -> None:
    """Write one file for each line of standard input, from shared memory, and print an answer.

    descriptor: of the memory. A line: {"path": ..., "entries": [[name, dtype, shape, begin, end],
    ...], "log": None or the path of a RecordedDisk's}. An answer: {"written": [offsets, checksums,
    nbytes]} or {"error": text}. Ends with its input.
    """
    for announced in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(announced, signal.SIG_IGN)  # Slurm signals every process of a job
    memory = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    for line in sys.stdin:
        job = json.loads(line)
        disk = Disk() if job["log"] is None else RecordedDisk(Path(job["log"]))
        entries = [
            Entry(name, dtype, shape, memory[begin:end])
            for name, dtype, shape, begin, end in job["entries"]
        ]
        answer: dict[str, Any]
        try:
            answer = {"written": write_rank_file(disk, Path(job["path"]), entries)}
        except OSError as error:
            answer = {"error": str(error)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # the rank was killed
            os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
