"""A rank's way into a world on several hosts, from what torchrun tells it.

`connect.py` is for ranks that `labkit.run` forks on one host: they meet in a file and use the
loopback. Here they meet in a TCPStore and use the interface that reaches the other hosts.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm import flight_recorder
from labkit.comm.agreement.agreement import Neighbours
from labkit.comm.group import Group
from labkit.comm.hosts import interface
from labkit.comm.hosts.board import open_store
from labkit.comm.hosts.environment import Environment
from labkit.comm.hosts.roll_call import RollCall
from labkit.comm.journal import Journal


def connect_by_environment(
    environment: Environment, call: RollCall, device: str, journal: Path, timeout_s: float
) -> Group:
    """Join the ranks of the roll call; returns the world when all of them are there.

    device: "cpu" (gloo) or "cuda" (nccl, a GPU per local rank). timeout_s: of each operation.
    journal: in a folder of this host's ranks, which compare what they call there (agreement.py).
    """
    interface.use_for_gloo(own_address(environment, call))
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", environment.local_rank)
        torch.cuda.set_device(place)
    flight_recorder.enable()
    timeout = timedelta(seconds=timeout_s)
    store = dist.PrefixStore(f"labkit/{call.name}/world", open_store(environment, timeout_s))
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timeout,
    )
    _meet(store, environment.world_size, timeout)
    ranks = frozenset(environment.local_ranks)
    neighbours = Neighbours(ranks, journal.parent)
    return Group.world(place, Journal(journal), timeout, neighbours)


def _meet(store: dist.Store, world_size: int, timeout: timedelta) -> None:
    """Return when all have come: nobody begins before, and clocks are compared by this moment.

    Not by a barrier of torch.distributed: the program's own collectives are numbered from 1.
    """
    if store.add("labkit/num_here", 1) == world_size:
        store.set("labkit/all_here", "")
    store.wait(["labkit/all_here"], timeout)


def own_address(environment: Environment, call: RollCall) -> str | None:
    """This host's address as the others see it; None when all ranks are on this host."""
    if environment.is_alone:
        return None
    others = [p.address for p in call.places if p.host_number != environment.host_number]
    return interface.address_towards(others[0])


def set_number_of_threads() -> None:
    """As many as OMP_NUM_THREADS says (torchrun says 1 where a host has several ranks)."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
