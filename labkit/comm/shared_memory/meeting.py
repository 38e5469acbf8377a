"""Let the ranks of a group share a memory: a file in /dev/shm that each of them maps.

    each rank    makes a folder with FIFOs to itself, tells the others where (one all_gather), and
                 opens theirs: now there is a barrier
    first rank   makes the memory, a file, and leaves a link to it in its folder
    barrier      each rank maps the file
    barrier      folders and file are removed

From then on nothing has a name: the kernel frees the memory when the last process that has mapped
it ends. The file has its name for some milliseconds. If a rank is killed in that time, the next
meeting removes the file.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import owned_folder
from labkit.comm.member import mark
from labkit.comm.operation import ranks_named, verb
from labkit.comm.shared_memory.barrier import Barrier
from labkit.comm.traffic import ring_all_gather

if TYPE_CHECKING:
    from labkit.comm.group import Group


NOTE_BYTES = 2048
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def meet(
    group: Group, nbytes: int, timeout_s: float, *, smaller: str
) -> tuple[torch.Tensor, Barrier]:
    """Return memory that all members have mapped, (nbytes,) of uint8, and their barrier.

    smaller: how to need less, for the error on a rank without room.

    Every member calls it; the journal has it as share_memory. ValueError, before anything is sent,
    for members that are known to be on other hosts; RuntimeError where that turns out here, and
    where a rank is gone; OSError, on the first rank, where there is no room for the memory.
    Wire: an all_gather of a note, NOTE_BYTES per rank.
    """
    if strangers := _on_other_hosts(group):
        raise ValueError(_not_one_host(strangers))
    note = torch.empty(NOTE_BYTES, dtype=torch.uint8)
    record = group._post("share_memory", note, ring_all_gather(NOTE_BYTES, group.size), True)
    with group._under_way(record):
        # A run's folder goes with the run.
        parent = group._same_host.folder if group._same_host.ranks else tempfile.gettempdir()
        folder = owned_folder.make(Path(parent), "fifos")
        try:
            barrier = Barrier(folder, group.ranks, group.rank)
            folders = _exchanged(group, note, folder)
            return _mapped_together(barrier, folders, nbytes, timeout_s, smaller), barrier
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def require_on_host(group: Group) -> None:
    """Raise ValueError for a group on GPUs."""
    if group.device.type != "cpu":
        raise ValueError(
            f"this group exchanges tensors on {group.device}, and the memory that ranks "
            "share is the host's; use the group's own collectives"
        )


def timeout_s(group: Group) -> float:
    """Return how long ranks of this group wait for each other."""
    timeout: timedelta = group._timeout or c10d._get_default_timeout(dist.get_backend())
    return timeout.total_seconds()


def _exchanged(group: Group, note: torch.Tensor, folder: Path) -> list[Path]:
    """The folders of all members. RuntimeError where one cannot be seen from another."""
    text = json.dumps([_host(folder), str(folder)]).encode()
    note.copy_(torch.frombuffer(bytearray(text.ljust(NOTE_BYTES)), dtype=torch.uint8))
    notes = note.new_empty(group.size * NOTE_BYTES)
    try:
        group._process_group._allgather_base(notes, note, c10d.AllgatherOptions()).wait()
    except RuntimeError as error:
        mark(error)
        raise
    answers = [json.loads(bytes(each.tolist())) for each in notes.split(NOTE_BYTES)]
    if strangers := _not_with_the_first([host for host, _ in answers], group.ranks):
        raise RuntimeError(_not_one_host(strangers))
    return [Path(folder) for _, folder in answers]


def _mapped_together(
    barrier: Barrier, folders: Sequence[Path], nbytes: int, timeout_s: float, smaller: str
) -> torch.Tensor:
    link = folders[0] / "memory"
    try:
        barrier.connect(folders, timeout_s)
        with contextlib.ExitStack() as first_rank:
            if barrier.member == 0:
                link.symlink_to(first_rank.enter_context(made(nbytes, smaller)))
            barrier.arrive()
            barrier.wait(timeout_s)
            memory = mapped(link)
            barrier.arrive()
            barrier.wait(timeout_s)
    except BaseException:
        barrier.close()  # the others must not wait
        raise
    return memory


def _host(folder: Path) -> list[object]:
    """Return what is equal on ranks that see the same files. Two containers may see others."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):  # Linux only
        name = _BOOT_ID.read_text()
    return [name, parent_folder().stat().st_dev, folder.stat().st_dev]


def _on_other_hosts(group: Group) -> list[int]:
    """Return the members that the launcher has put on another host than the first."""
    if group._throttle is not None:
        hosts = [group._throttle.topology.host_of(rank) for rank in group.ranks]
        return _not_with_the_first(hosts, group.ranks)
    here = group._same_host.ranks
    return _not_with_the_first([rank in here for rank in group.ranks], group.ranks)


def _not_with_the_first(hosts: Sequence[object], ranks: Sequence[int]) -> list[int]:
    return [rank for rank, host in zip(ranks, hosts, strict=True) if host != hosts[0]]


def _not_one_host(strangers: Sequence[int]) -> str:
    return (
        f"{ranks_named(strangers)} {verb(strangers, 'is')} on another host, or in another "
        "container, than the first rank of the group: there is no memory to share. Use a group for "
        "each host (group.split), with hierarchical_all_reduce for a sum over all of them"
    )


_IN_MEMORY = Path("/dev/shm")
_PIECE_BYTES = 2**20


def parent_folder() -> Path:
    """Return /dev/shm, which is memory, or without one, as on macOS, the folder for temporary
    files. Its pages stay in memory while they are in use.
    """
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def made(nbytes: int, smaller: str) -> Iterator[Path]:
    """Make a file of zeros, for the block. Processes that map it in the block keep the memory.

    OSError that names what is free, what is needed and what to do: `smaller` says how to need less.
    """
    folder = owned_folder.make(parent_folder(), "memory")
    try:
        _allocate(folder / "file", nbytes, smaller)
        yield folder / "file"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _allocate(path: Path, nbytes: int, smaller: str) -> None:
    """Allocate memory for every byte.

    A file that is only set to its size gets each page at the first write. If no page is left, that
    write ends the process with SIGBUS.
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
    """Map the file's bytes, (size,) of uint8: what one process writes there, all others see.

    They stay as long as some process has such a tensor, even when the file's name is gone.
    """
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)


def _free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user may still take, or None if only the machine limits them."""
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
