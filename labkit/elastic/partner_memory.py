"""Keep the newest state in the memory of two hosts, so that a lost host costs a step and no disk.

    host 0                   host 1                   host 2
    rank 0   rank 1          rank 2   rank 3          rank 4   rank 5
    0 1  | copies of 4 5     2 3  | copies of 0 1     4 5  | copies of 2 3
         send ------------------> send ------------------> send ---> to host 0

A host's memory is a folder in tmpfs, such as /dev/shm/job: it outlives the processes, and is lost
with the host. In it is a checkpoint, as a disk has it. After host 1 is lost, its shards are on
host 2, and those that it kept for host 0 are on host 0. When two neighbours of the ring are lost at
once, shards are gone, and the newest checkpoint on the disk counts.

A save is cheap, so it may be of every step. The disk is still there, at a longer interval.
Paper: Wang et al., "Gemini: Fast Failure Recovery in Distributed Training with In-Memory
Checkpoints", SOSP 2023, which sends the copies while the network is idle. Here training waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from labkit.checkpoint import Checkpointer, Loaded
from labkit.checkpoint.checkpointer import Stateful
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
        raise NotImplementedError

    def save(self, step: int) -> int:
        """Save the state after `step` steps, on this host and on its partner. Every rank calls it.

        Returns how many bytes this rank has sent: the size of its file. SaveFailed, on every rank,
        where a rank cannot write.
        """
        raise NotImplementedError

    def load(self) -> Loaded | None:
        """Load the newest checkpoint of which all shards are in some host's memory.

        Every rank calls it, in any layout. None where there is none, because nothing was saved or
        both hosts of a shard are lost; rank 0 prints which file is missing.
        """
        raise NotImplementedError


def load_newest(memory: PartnerMemory, checkpointer: Checkpointer) -> Loaded | None:
    """Load the newest state of memory and disk; None where nothing was saved.

    Every rank calls it, before the first save.
    """
    raise NotImplementedError


def partners(host_of: Sequence[int]) -> list[int]:
    """By rank: the rank on the next host of the ring that keeps its copy.

    host_of: each rank's host. partners([0, 0, 1, 1, 2]) == [2, 3, 4, 4, 0]
    """
    raise NotImplementedError
