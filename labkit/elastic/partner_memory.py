"""Keep the newest state in the memory of two hosts, so that a lost host costs a step and no disk.

    host 0                   host 1                   host 2
    rank 0   rank 1          rank 2   rank 3          rank 4   rank 5
    0 1  | copies of 4 5     2 3  | copies of 0 1     4 5  | copies of 2 3
         send ------------------> send ------------------> send ---> to host 0

A host's memory is a folder in tmpfs, such as /dev/shm/job: it outlives the processes, and is lost
with the host. In it is a checkpoint, as a disk has it. After host 1 is lost, its shards are on
host 2, and those that it kept for host 0 are on host 0. When two neighbours of the ring are lost at
once, shards are gone, and the newest checkpoint on the disk counts.

A save needs no disk, so it may be of every step. The disk has one at a longer interval.

    own     write into memory (a Checkpointer without syncs) | it counts while no host is lost
    copy                                                     | send, write | it survives a host

The manifest has the size of each file, so a copy that a kill has cut short does not count: when its
host is lost, too, the save before is loaded. After a load, the lost host's shards are in one memory
until the next save returns.

Wire: each rank sends its file once, in an all-to-all, and what a Checkpointer sends.
Memory: two saves stay, and a third is written: up to six times the shards of a host's ranks, where
all hosts have as many. During a copy, a rank also holds the file that it receives.
Paper: Wang et al., "Gemini: Fast Failure Recovery in Distributed Training with In-Memory
Checkpoints", SOSP 2023, which sends the copies while the network is idle. Here training waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checkpoint import Checkpointer, Damaged, Disk, LoadResult, SaveFailed
from labkit.checkpoint.checkpointer import Stateful
from labkit.checkpoint.disk import OpenFile
from labkit.checkpoint.loading import find
from labkit.checkpoint.manifest import REMOVED, Manifest, file_of, finished_saves, step_of
from labkit.checkpoint.plain_data import agreed, gather_plain, memory_of, result_or_error
from labkit.checkpoint.saving import remove_folders
from labkit.comm import Group


class PartnerMemory:
    """The newest checkpoints of a job in its hosts' memories, each shard on two hosts.

    memory = PartnerMemory("/dev/shm/job", model, optimizer, world, host=k)
    loaded = load_newest(memory, checkpointer)
    for step in range(loaded.step if loaded else 0, num_steps):
        train(...)
        memory.save(step + 1)
        if (step + 1) % 100 == 0:
            checkpointer.save(step + 1)
    """

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: Any = None,
        group: Group | None = None,
        *,
        host: int,
        extra: Mapping[str, Stateful] | None = None,
    ) -> None:
        """folder: memory of this host, such as /dev/shm/job; the same for all of its ranks.

        host: the number of this rank's host. Hosts may have different numbers of ranks. The rest is
        as in Checkpointer. ValueError, on every rank, where there is one host only.
        """
        self._disk = _Memory()
        # Two stay: the one before counts until all copies of the new one are written.
        self._checkpointer = Checkpointer(
            folder, model, optimizer, group, extra=extra, keep_last=2, disk=self._disk
        )
        self._group = self._checkpointer.group
        self._partners = partners(gather_plain(host, self._group))

    def save(self, step: int) -> int:
        """Save the state after `step` steps, on this host and on its partner. Every rank calls it.

        Returns how many bytes this rank has sent: the size of its file. SaveFailed, on every rank,
        where a rank cannot write its file or a copy: the saves before are untouched.
        """
        self._checkpointer.save(step)
        folder, rank = self._checkpointer.folder, self._group.rank
        (name,) = (name for name in finished_saves(folder) if step_of(name) == step)
        sizes = Manifest.read(folder / name).files
        path, nbytes = folder / name / file_of(rank), sizes[file_of(rank)]
        mine = torch.from_file(str(path), size=nbytes, dtype=torch.uint8)  # mapped, not read
        ranks = range(self._group.size)
        senders = [other for other in ranks if self._partners[other] == rank]
        with self._group.label("shards to the partner host"):
            received = self._group.all_to_all(
                mine.to(self._group.device),
                [nbytes if other == self._partners[rank] else 0 for other in ranks],
                [sizes[file_of(other)] if other in senders else 0 for other in ranks],
            ).cpu()
        paths = [folder / name / file_of(other) for other in senders]
        files = received.split([sizes[path.name] for path in paths])
        kept = result_or_error(lambda: self._keep(paths, files))
        try:
            agreed(kept, SaveFailed, self._group)
        except SaveFailed:
            # It would push out the last one that has its copies. A rank of this host is the first.
            removed = folder / f"{name}{REMOVED}"
            with suppress(OSError):
                self._disk.rename(folder / name, removed)
            remove_folders(self._disk, [removed])
            raise
        return nbytes

    def load(self) -> LoadResult | None:
        """Load the newest checkpoint of which all shards are in some host's memory.

        Every rank calls it, in any layout. None where there is none, because nothing was saved or
        both hosts of a shard are lost; rank 0 prints which file is missing.
        """
        try:
            return self._checkpointer.load()
        except Damaged as error:
            if self._group.rank == 0:
                print(f"the hosts' memories have no checkpoint: {error}", flush=True)
            self._checkpointer.allow_overwriting_later_steps()
            return None

    def _keep(self, paths: Sequence[Path], files: Sequence[Tensor]) -> None:
        for path, file in zip(paths, files, strict=True):
            self._disk.write_whole(path, memory_of(file))


class _Memory(Disk):
    """Files in memory: there is nothing to sync."""

    def sync(self, file: OpenFile) -> None:
        """Nothing."""

    def sync_folder(self, path: Path) -> None:
        """Nothing."""


def load_newest(memory: PartnerMemory, checkpointer: Checkpointer) -> LoadResult | None:
    """Load the newest state of memory and disk; None where nothing was saved.

    Every rank calls it, before the first save. Errors are those of `checkpointer.load()`.
    """
    in_memory, on_disk = _newest_step(memory._checkpointer), _newest_step(checkpointer)
    loaded = None if 0 <= in_memory < on_disk else memory.load()
    if loaded is None:
        loaded = checkpointer.load()
    for each in (memory._checkpointer, checkpointer):
        each.allow_overwriting_later_steps()
    return loaded


def _newest_step(checkpointer: Checkpointer) -> int:
    """Return the step that a load would take; -1 where there is nothing complete."""
    try:
        found = find(checkpointer.folder, checkpointer.group)
    except Damaged:
        return -1
    return -1 if found is None else found.manifest.step


def partners(host_of: Sequence[int]) -> list[int]:
    """By rank: the rank on the next host of the ring that keeps its copy.

    host_of: each rank's host. partners([0, 0, 1, 1, 2]) == [2, 3, 4, 4, 0]. ValueError for one
    host: its memory is lost as a whole.
    """
    hosts = sorted(set(host_of))
    if len(hosts) < 2:
        raise ValueError(
            f"all {len(host_of)} ranks are on host {hosts[0]}, and a partner has to be on another "
            "one: give each rank the number of its host, or save to a disk with a Checkpointer"
        )
    found = []
    for rank, host in enumerate(host_of):
        after = hosts[(hosts.index(host) + 1) % len(hosts)]
        there = [other for other, its in enumerate(host_of) if its == after]
        number = host_of[:rank].count(host)  # this rank's number on its host
        found.append(there[number % len(there)])
    return found
