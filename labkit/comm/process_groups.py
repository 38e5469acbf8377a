"""The process groups of torch.distributed that stand behind Groups: made, and destroyed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def connected(
    ranks: tuple[int, ...], name: str, timeout: timedelta | None, backend: str | None = None
) -> dist.ProcessGroup:
    """A process group of `ranks`, which alone call this, under a name that no other group has.

    backend: None for that of the default group.

    Not dist.new_group: either every rank of the world must call it, or (with
    use_local_synchronization) it makes up the name from how many groups this process has, and
    members that have been in different numbers of groups wait for each other for ever.
    """
    backend = dist.Backend(backend or dist.get_backend())
    process_group, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        list(ranks),
        backend,
        c10d._get_default_store(),
        f"labkit/{name}",  # type: ignore[arg-type]
        timeout=timeout or c10d._get_default_timeout(backend),
        group_desc=name,
    )
    c10d._world.pg_group_ranks[process_group] = {rank: i for i, rank in enumerate(ranks)}
    return process_group


def met(store: Path, rank: int, size: int, timeout: timedelta) -> Any:
    """A gloo process group of processes that have no world in common, and meet in the file `store`.

    torch knows nothing of it: its connections are closed with its last reference.
    """
    files = dist.FileStore(str(store), size)
    files.set_timeout(timeout)
    return dist.ProcessGroupGloo(files, rank, size, timeout)


def destroy(process_group: dist.ProcessGroup) -> None:
    """Let torch forget it; its connections are closed with the caller's own last reference."""
    c10d.destroy_process_group(process_group)
