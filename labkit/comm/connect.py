"""A rank's way into the world: one call of init_process_group, and its journal."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm.group import Group
from labkit.comm.journal import Journal


def connect(
    rank: int, world_size: int, device: str, store: Path, journal: Path, timeout_s: float
) -> Group:
    """Join the `world_size` ranks that meet in the file `store`; returns the world.

    device: "cpu" (gloo) or "cuda" (nccl, one GPU per rank). Ranks on one host only: gloo uses the
    loopback interface, and a FileStore, because a TCPStore looks up a host name per connection,
    which stalls for seconds where the resolver is slow.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    timeout = timedelta(seconds=timeout_s)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(str(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    place = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    return Group.world(place, Journal(journal), timeout)
