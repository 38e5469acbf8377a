"""Ranks on several hosts find each other under torchrun, agree on a name, and connect.

Rank 0 makes up a name for this attempt and pins it to the store. Every other rank answers with a
hello. When all have answered, rank 0 pins the table of all places. The store outlives an attempt,
and after a failure hosts disagree on how often torchrun has restarted (an agent that has returned
counts from 0). So a rank believes only a table that contains the nonce of its own hello.

Then `connect_by_environment` makes the world. The ranks meet in a TCPStore and use the interface
that reaches the other hosts. (Ranks that `labkit.run` forks on one host meet in a file and use the
loopback: comm/connect.py.)
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm import recorder
from labkit.comm.group import Group
from labkit.comm.journal import Journal
from labkit.comm.mismatch_detector import SameHostRanks
from labkit.hosts.board import Board, open_store
from labkit.hosts.environment import Environment, address_towards, use_for_gloo


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one rank, and what it reports of its host."""

    rank: int
    host_number: int
    host: str
    """The host's name."""
    address: str
    """Where the other hosts reach it."""
    liveness_port: int
    """The port that answers as long as the rank is there: `LivenessPort` in hosted_rank.py."""
    folder: str
    """Where the ranks of this host leave notes for each other."""
    next_attempt: int
    """By the attempts that this host has seen."""
    objection: str
    """Why its folder of the Run is not for this job; empty where it is."""
    num_gpus: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The places of all ranks, by rank, and the name of this attempt in the store."""

    name: str
    places: list[Place]

    @property
    def attempt(self) -> int:
        """The first number that no host has used."""
        return max(place.next_attempt for place in self.places)

    def has_gpus(self) -> bool:
        """Every rank of every host can have a GPU of its own."""
        hosts = [place.host_number for place in self.places]
        return all(place.num_gpus >= hosts.count(place.host_number) for place in self.places)

    def folder(self, environment: Environment) -> str:
        """The folder of this host: that of its first rank."""
        return self.places[environment.local_ranks[0]].folder


_AGAIN_S = 0.05
_LINE_S = 5.0


def join(
    environment: Environment,
    store: dist.Store,
    *,
    liveness_port: int,
    folder: str,
    next_attempt: int,
    objection: str = "",
    num_gpus: int,
    timeout_s: float,
) -> tuple[Rendezvous, Board]:
    """Take part in the rendezvous; return when all ranks have.

    store: of the job, from `open_store`. Raises RuntimeError when they have not within `timeout_s`,
    and on all hosts where one objects.
    """
    deadline = time.monotonic() + timeout_s
    store = dist.PrefixStore("labkit", store)
    me = Place(
        rank=environment.rank,
        host_number=environment.host_number,
        host=socket.gethostname(),
        # The others found host 0 under this name; its own name may stand for 127.0.1.1.
        address=environment.master_addr
        if environment.host_number == 0
        else address_towards(environment.master_addr),
        liveness_port=liveness_port,
        folder=folder,
        next_attempt=next_attempt,
        objection=objection,
        num_gpus=num_gpus,
        nonce=secrets.token_hex(8),
    )
    note = json.dumps(dataclasses.asdict(me))
    call = _lead if environment.rank == 0 else _follow
    name, found = call(store, environment, note, deadline)
    places = [Place(**place) for place in found]
    for place in places:
        if place.objection:
            raise RuntimeError(f"on host {place.host}, {place.objection}")
    return Rendezvous(name, places), Board(lambda: _line(environment), name)


def _line(environment: Environment) -> dist.Store:
    return dist.PrefixStore("labkit", open_store(environment, _LINE_S, is_guest=True))


def _lead(
    store: dist.Store, environment: Environment, note: str, deadline: float
) -> tuple[str, list[dict]]:
    name = secrets.token_hex(8)
    store.set("attempt", name)
    keys = [f"{name}/hello/{rank}" for rank in range(1, environment.world_size)]
    try:
        store.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 1)))
    except RuntimeError as error:
        absent = [rank for rank, key in enumerate(keys, start=1) if not store.check([key])]
        raise _not_here(f"ranks {absent} have not come", environment) from error
    places = [json.loads(note), *(json.loads(store.get(key)) for key in keys)]
    store.set(f"{name}/table", json.dumps(places))
    return name, places


def _follow(
    store: dist.Store, environment: Environment, note: str, deadline: float
) -> tuple[str, list[dict]]:
    answered: set[str] = set()
    while time.monotonic() < deadline:
        name = store.get("attempt").decode()
        if name not in answered:
            store.set(f"{name}/hello/{environment.rank}", note)
            answered.add(name)
        if store.check([f"{name}/table"]):
            places = json.loads(store.get(f"{name}/table"))
            # The table of an earlier attempt may still be there.
            if len(places) > environment.rank and places[environment.rank] == json.loads(note):
                return name, places
        time.sleep(_AGAIN_S)
    raise _not_here("rank 0 has not started the rendezvous", environment)


def _not_here(what: str, environment: Environment) -> RuntimeError:
    return RuntimeError(
        f"{what}: the {environment.world_size} ranks of this job did not all start. Look at the "
        "other hosts' output; a firewall must let them reach each other on any port"
    )


def connect_by_environment(
    environment: Environment, rendezvous: Rendezvous, device: str, journal: Path, timeout_s: float
) -> Group:
    """Connect the ranks of the rendezvous; returns the world when all of them are there.

    device: "cpu" (gloo) or "cuda" (nccl, a GPU per local rank). timeout_s: of each operation.
    journal: in a folder of this host's ranks, which compare what they call there.
    """
    use_for_gloo(own_address(environment, rendezvous))
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", environment.local_rank)
        torch.cuda.set_device(place)
    recorder.enable()
    timeout = timedelta(seconds=timeout_s)
    store = dist.PrefixStore(f"labkit/{rendezvous.name}/world", open_store(environment, timeout_s))
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timeout,
    )
    _meet(store, environment.world_size, timeout)
    ranks = frozenset(environment.local_ranks)
    same_host = SameHostRanks(ranks, journal.parent)
    return Group.world(place, Journal(journal), timeout, same_host)


def _meet(store: dist.Store, world_size: int, timeout: timedelta) -> None:
    """Return when all ranks are here. Clocks of hosts are compared by this moment.

    Not by a barrier of torch.distributed: the program's own collectives are numbered from 1.
    """
    if store.add("labkit/num_here", 1) == world_size:
        store.set("labkit/all_here", "")
    store.wait(["labkit/all_here"], timeout)


def own_address(environment: Environment, rendezvous: Rendezvous) -> str | None:
    """Return this host's address as the others see it, or None if all ranks are on this host."""
    if environment.is_alone:
        return None
    others = [p.address for p in rendezvous.places if p.host_number != environment.host_number]
    return address_towards(others[0])


def set_number_of_threads() -> None:
    """Use as many threads as OMP_NUM_THREADS says (torchrun: 1 where a host has several ranks)."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
