"""A rank joins the world: its GPU and backend, one call of init_process_group, its journal.

`sent_bytes` counts the bytes that this process has put on TCP sockets, from the kernel's TCP_INFO
(Linux only). Tests compare it with the journal, which has the bytes that each operation meant to
send.
"""

import os
import socket
import struct
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm import recorder
from labkit.comm.group import Group
from labkit.comm.journal import Journal
from labkit.comm.mismatch_detector import SameHostRanks
from labkit.comm.throttle import Throttle
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
    share GPUs, see `placement`). Ranks on one host only: gloo uses the loopback interface, and a
    FileStore, because a TCPStore looks up a host name per connection, which stalls for seconds
    where the resolver is slow. With a topology, messages are throttled to its links: see
    throttle.py.
    Raises RuntimeError where a GPU is asked for and none is seen.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    recorder.enable()
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
    same_host = SameHostRanks(frozenset(range(world_size)), folder)
    throttle = None if topology is None else Throttle(topology, folder)
    return Group.world(place, Journal(journal), timeout, same_host, throttle)


def placement(rank: int, world_size: int, device: str, num_gpus: int) -> tuple[str, torch.device]:
    """Return (backend, device) of a rank among `world_size` on this host.

    device: "cpu" or "cuda". Ranks that share GPUs talk through the host, with gloo: see staging.py.
    Raises RuntimeError where "cuda" was asked for and the rank sees no GPU.
    """
    if device == "cpu":
        return "gloo", torch.device("cpu")
    if num_gpus == 0:
        raise RuntimeError(
            f"rank {rank} was to use a GPU, but sees none; something changed since the run was "
            "started, CUDA_VISIBLE_DEVICES for example. Use device='cpu'"
        )
    backend = "gloo" if shares_gpus(world_size, num_gpus) else "nccl"
    return backend, torch.device("cuda", rank % num_gpus)


def shares_gpus(world_size: int, num_gpus: int) -> bool:
    """Return whether some GPU has several ranks. nccl refuses that: "Duplicate GPU detected"."""
    return world_size > num_gpus


def sent_bytes() -> int | None:
    """Bytes sent so far over this process's open TCP connections; None where unknown.

    Counts gloo's own notes too (48 bytes each: two from the sender of a message, one from its
    receiver), but not the headers of TCP.
    """
    if not sys.platform.startswith("linux"):
        return None
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptor = os.dup(int(name))
        except OSError:
            continue  # the descriptor of the listing itself is already closed
        total += _sent_on(descriptor)
    return total


# tcpi_bytes_sent and tcpi_bytes_retrans in struct tcp_info (linux/tcp.h, since 4.19)
_SENT_AND_SENT_AGAIN = struct.Struct("=QQ")
_SENT_AT = 200


def _sent_on(descriptor: int) -> int:
    """Bytes sent on a connected TCP socket, 0 for anything else; closes `descriptor`."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return 0
    with connection:
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return 0
    if len(info) < _SENT_AT + _SENT_AND_SENT_AGAIN.size:
        return 0
    sent, sent_again = _SENT_AND_SENT_AGAIN.unpack_from(info, _SENT_AT)
    return int(sent - sent_again)  # a busy machine repeats segments even on the loopback
