"""A rank that torchrun started: two processes, the rank and its attendant, and a liveness port.

    torchrun's agent, one per host
      attendant of rank 2    prints its output, watches over it, talks to the other hosts
        rank 2               connects, calls the function; may hang in C++ or die

The rank is forked from its attendant, which has imported torch and labkit and computes nothing, as
the fork server in rank_process.py. So when a rank hangs in C++, or dies, its attendant reports it.

LivenessPort: each rank listens on a port and says nothing there. While its process lives, a
connection succeeds. When the process is gone, the kernel refuses it. When the host is gone, no
answer comes. No byte is ever read, so nothing can be sent through the port. Each host probes the
next one's port:

    host 0 --> host 1 --> host 2 --> host 0      by its first rank: no port is probed by all
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from labkit import interrupts
from labkit.comm import Group
from labkit.hosts.environment import Environment
from labkit.hosts.rendezvous import Place, Rendezvous, connect_by_environment, set_number_of_threads
from labkit.launch import payload
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import RankSpec, rank_main
from labkit.launch.rank_process import RankProcess
from labkit.launch.request import check_function


@dataclass(frozen=True, kw_only=True)
class HostedSpec(RankSpec):
    """The rank of a job on several hosts that a process is to be."""

    environment: Environment
    rendezvous: Rendezvous
    file: str
    arguments: Sequence[str]
    liveness_port: LivenessPort

    def program(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """The function in the file that every host has."""
        self.liveness_port.close()
        sys.argv = [self.file, *self.arguments]
        return read_program(self.file)

    def connected(self) -> Group:
        """The world, once the ranks of all hosts have joined it."""
        set_number_of_threads()
        journal = self.directory.of_rank(self.rank, "journal")
        world = connect_by_environment(
            self.environment, self.rendezvous, self.device, journal, self.timeout_s
        )
        self.directory.of_rank(self.rank, "clock").write_text(repr(time.monotonic()))
        return world


class FolderOfOneRank(RunDirectory):
    """The same folder, for a supervisor that has one rank and calls it 0."""

    def __init__(self, path: Path, rank: int) -> None:
        """`rank` is its number in the world."""
        self.path, self._rank = path, rank

    def of_rank(self, rank: int, kind: str) -> Path:
        """The file of the one rank."""
        return super().of_rank(self._rank + rank, kind)


def fork_rank(spec: RankSpec) -> RankProcess:
    """Fork one rank from this process; it begins at `rank_main`."""
    context = multiprocessing.get_context("fork")
    control, its_control = context.Pipe()
    output, its_output = context.Pipe(duplex=False)
    its_lifeline, lifeline = context.Pipe(duplex=False)

    def begin() -> None:
        for connection in (control, output, lifeline):
            connection.close()  # a lifeline ends when nobody else holds the other end
        rank_main(spec, its_control, its_output, its_lifeline)

    process = context.Process(target=begin, name=f"rank {spec.rank}")
    with interrupts.blocked():  # until the rank has left this process's group
        process.start()
    for connection in (its_control, its_output, its_lifeline):
        connection.close()
    return RankProcess(spec.rank, process, control, output, lifeline)  # type: ignore[arg-type]


def read_program(file: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The function and its arguments after `world`, from FILE of `labkit.launch.payload FILE`:

        train.py          the function `main(world)` of that file
        train.py:warm     its function `warm(world)`
        sums.payload      a function that `labkit.save_payload` stored, with its arguments

    Raises FileNotFoundError, ValueError for a file without that function or that is no payload,
    TypeError for a function that would only be started, and whatever the file itself raises.
    """
    path, name = _parts(file)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder: name a file in it, such as {path / 'train.py'}, or what "
            "labkit.save_payload wrote"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path} on this host (in {Path.cwd()}). Every host needs it under the "
            "same name: use a shared folder, or copy it"
        )
    fn, args = payload.read_elsewhere(path) if path.suffix != ".py" else _function(path, name)
    check_function(fn)
    return fn, args


def _function(path: Path, name: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Return a function of a Python file, which takes the world and nothing else."""
    if not name.isidentifier():
        raise ValueError(
            f"{path}:{name}: no function is called {name!r}; write {path} for its main(world), or "
            f"{path}:function"
        )
    fn = getattr(_imported(path), name, None)
    if not callable(fn):
        raise ValueError(
            f"{path} has no function {name}: define `def {name}(world): ...` at its top level, or "
            f"name another one, {path}:function"
        )
    return fn, ()


def _parts(file: str) -> tuple[Path, str]:
    stem, colon, name = file.rpartition(":")
    if colon and stem.endswith(".py"):
        return Path(stem), name
    return Path(file), "main"


def _imported(path: Path) -> Any:
    """Import the file as a module of its own name, so that pickles of its classes find it."""
    sys.path.insert(0, str(path.resolve().parent))  # its imports lie beside it
    specification = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    # Not by the loader: an error in the file would be said to be raised in Python's importlib.
    exec(_code(path), module.__dict__)
    return module


def _code(path: Path) -> CodeType:
    try:
        return compile(path.read_bytes(), path.resolve(), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        if isinstance(error, SyntaxError) and error.filename:
            raise
        # Null bytes, or a sum of thousands of terms: Python does not say where.
        raise ValueError(f"{path} is no file that Python can read: {error}") from None


NO_PROCESS = "has no such process any more"
SILENT = "does not answer"
_EVERY_S = 2.0
_AGAIN_S = 0.5
_WAIT_S = 1.5
_PROBES = 3


class LivenessPort:
    """This process's port, open until the process ends."""

    def __init__(self) -> None:
        """Listen on a free port, for IPv4 and, where this host has it, IPv6."""
        self._socket = _listening()
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def answer(self) -> None:
        """Close the connections of all probes so far, so that there is room for others."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """In a forked child: the port is its parent's."""
        self._socket.close()


def probe(address: str, port: int, wait_s: float) -> str | None:
    """Return None if the port is open, otherwise NO_PROCESS, or SILENT after `wait_s`."""
    try:
        with socket.create_connection((address, port), wait_s):
            return None
    except ConnectionRefusedError:
        return NO_PROCESS
    except OSError:
        return SILENT


class LivenessProbes:
    """Probes of many ports. A host that is silent at the first one is silent at the others."""

    def __init__(self, wait_s: float) -> None:
        """wait_s: for each answer."""
        self._wait_s = wait_s
        self._answering: set[int] = set()
        self._silent: set[int] = set()

    def at(self, place: Place) -> str | None:
        """As probe; a host that is gone is waited for once, and not for each of its ranks."""
        host = place.host_number
        if host in self._silent:
            return SILENT
        answer = probe(place.address, place.liveness_port, self._wait_s)
        if answer is not SILENT:
            self._answering.add(host)
        elif host not in self._answering:  # else it is this rank alone that is too busy
            self._silent.add(host)
        return answer


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is there, but turned off
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=64)


class NextHost:
    """The host after this one: whether it is there."""

    def __init__(self, environment: Environment, rendezvous: Rendezvous) -> None:
        """environment: of one of our ranks; its host's first does the probing."""
        self._place = _port_after(environment, rendezvous) if environment.local_rank == 0 else None
        self._next_probe_s = time.monotonic() + _EVERY_S
        self._num_unanswered = 0

    def is_gone(self) -> bool:
        """Probe, if it is time to; return whether nobody has answered several times."""
        if self._place is None or time.monotonic() < self._next_probe_s:
            return False
        is_silent = probe(self._place.address, self._place.liveness_port, _WAIT_S) is not None
        self._num_unanswered = self._num_unanswered + 1 if is_silent else 0
        self._next_probe_s = time.monotonic() + (_AGAIN_S if is_silent else _EVERY_S)
        return self._num_unanswered >= _PROBES


def _port_after(environment: Environment, rendezvous: Rendezvous) -> Place | None:
    """Return the place of the first rank on the next host, or None if there is one host only."""
    places = rendezvous.places
    hosts = sorted({place.host_number for place in places})
    if len(hosts) == 1:
        return None
    after = hosts[(hosts.index(environment.host_number) + 1) % len(hosts)]
    return next(place for place in places if place.host_number == after)
