"""A file that lies in memory, and that several processes of a host map."""

import contextlib
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from labkit.comm import owned_folder

_IN_MEMORY = Path("/dev/shm")
_PIECE_BYTES = 2**20


def parent_folder() -> Path:
    """Where such files lie: /dev/shm, which is memory. Where that is not to be had, as on macOS,
    the folder for temporary files; pages that are in use stay in memory there too."""
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def made(nbytes: int, smaller: str) -> Iterator[Path]:
    """A file of zeros, inside the block; whoever has mapped it by its end keeps its memory.

    OSError that names what is free, what is needed and what to do: `smaller` says how to need less.
    """
    folder = owned_folder.make(parent_folder(), "memory")
    try:
        _allocate(folder / "file", nbytes, smaller)
        yield folder / "file"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _allocate(path: Path, nbytes: int, smaller: str) -> None:
    """Put memory behind every byte.

    A file that is merely set to its size gets its pages when they are written to; and where there
    are none left, that write ends the process with SIGBUS.
    """
    free = _free_bytes(path.parent)
    if free is not None and free < nbytes:
        raise OSError(_no_room(nbytes, f"{free:,} are free", smaller))
    try:
        with open(path, "wb") as file:
            if sys.platform == "darwin":  # has no posix_fallocate
                for at in range(0, nbytes, _PIECE_BYTES):
                    file.write(bytes(min(_PIECE_BYTES, nbytes - at)))
            else:
                os.posix_fallocate(file.fileno(), 0, nbytes)
    except OSError as error:  # somebody else took it just now, or a quota is used up
        raise OSError(_no_room(nbytes, f"there is: {error.strerror}", smaller)) from error


def mapped(path: Path) -> torch.Tensor:
    """The file's bytes, (size,) of uint8: what one process writes there, all others see.

    They stay as long as some process has such a tensor, even when the file's name is gone.
    """
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)


def _free_bytes(folder: Path) -> int | None:
    """Bytes that this user may still take; None where there is no limit but the machine's."""
    sizes = os.statvfs(folder)
    return sizes.f_bavail * sizes.f_frsize if sizes.f_blocks else None


def _no_room(nbytes: int, found: str, smaller: str) -> str:
    folder = parent_folder()
    larger = "name a folder with more room in TMPDIR"
    if folder == _IN_MEMORY:
        larger = "make it larger (docker run --shm-size=1g; mount -o remount,size=1g /dev/shm)"
    return (
        f"this shared memory takes {nbytes:,} bytes in {folder}, where {found}. Either {larger}, "
        f"or take {smaller}"
    )
