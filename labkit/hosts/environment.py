"""A rank's place in torchrun's job: environment variables, the network interface, the job's name.

gloo needs the name of the interface that reaches the other hosts, in GLOO_SOCKET_IFNAME. Without it
gloo takes the address of this host's own name, which often is 127.0.1.1. A variable that is set
already is respected: that is how to choose another interface.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

_NUMBERS = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "host_number": "GROUP_RANK",
    "master_port": "MASTER_PORT",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """One rank's place in a job of several hosts.

    `local_rank` counts within the host, `host_number` counts hosts; the store is at
    `master_addr`:`master_port`, on the agent of host 0 (`agent_has_store`) or else on rank 0.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host_number: int
    master_addr: str
    master_port: int
    run_id: str
    agent_has_store: bool

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """From this process's variables. RuntimeError where torchrun did not start it."""
        given = os.environ if variables is None else variables
        missing = [name for name in (*_NUMBERS.values(), "MASTER_ADDR") if not given.get(name)]
        if missing:
            raise RuntimeError(
                f"{', '.join(missing)} not set: torchrun sets these for each rank. Start it as "
                "torchrun --nproc-per-node=4 -m labkit.launch.payload FILE"
            )
        return cls(
            **{field: int(given[name]) for field, name in _NUMBERS.items()},
            master_addr=given["MASTER_ADDR"],
            run_id=given.get("TORCHELASTIC_RUN_ID", "none"),
            agent_has_store=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def local_ranks(self) -> range:
        """The ranks of this host: torchrun numbers them in a row."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)

    @property
    def is_alone(self) -> bool:
        """All ranks are on this host."""
        return self.local_world_size == self.world_size


_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def address_towards(host: str) -> str:
    """Return this host's address on the way to `host`. OSError: there is no way."""
    family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(
            target
        )  # connect() of a datagram socket only looks up the route, sends nothing
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address, or None."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def use_for_gloo(address: str | None) -> None:
    """Make gloo use the interface with `address`. None: the loopback, for ranks of one host."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = interface_of(address) if address else "lo0" if sys.platform == "darwin" else "lo"
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


_NO_NAME = "none"  # torchrun's name of a job without --rdzv-id


def name_of_job(environment: Environment, store: dist.Store) -> str:
    """Return the --rdzv-id, or for a job without one a name that lives as long as its store."""
    if environment.run_id != _NO_NAME:
        return environment.run_id
    own = f"{_NO_NAME} (no --rdzv-id), {secrets.token_hex(8)}"
    return bytes(store.compare_set("labkit/job", "", own)).decode()
