"""A rank's way into the world: one call of init_process_group, and its journal."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm import flight_recorder
from labkit.comm.agreement.agreement import Neighbours
from labkit.comm.group import Group
from labkit.comm.journal import Journal
from labkit.comm.placement import placement
from labkit.comm.throttling.throttled_messages import Throttle
from labkit.comm.topology import Topology


def connect(
    rank: int,
    world_size: int,
    device: str,
    store: Path,
    journal: Path,
    timeout_s: float,
    topology: Topology | None = None,
) -> Group:
    """Join the `world_size` ranks that meet in the file `store`; returns the world.

    device: "cpu" (gloo) or "cuda" (nccl with a GPU per rank; gloo through the host where ranks
    share GPUs, see placement.py). Ranks on one host only: gloo uses the loopback interface, and a
    FileStore, because a TCPStore looks up a host name per connection, which stalls for seconds
    where the resolver is slow. With a topology, messages are throttled to its links: see
    throttling/.
    Raises RuntimeError where a GPU is asked for and none is seen.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    flight_recorder.enable()
    timeout = timedelta(seconds=timeout_s)
    num_gpus = torch.cuda.device_count() if device == "cuda" else 0
    backend, place = placement(rank, world_size, device, num_gpus)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    folder = journal.parent
    neighbours = Neighbours(frozenset(range(world_size)), folder)
    throttle = None if topology is None else Throttle(topology, folder)
    return Group.world(place, Journal(journal), timeout, neighbours, throttle)
