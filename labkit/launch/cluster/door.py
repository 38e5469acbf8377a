"""A door that can be knocked at: does a rank on another host still live?

Each rank listens on a port and says nothing there. While its process lives, a connection succeeds;
when the process is gone, the kernel refuses it; when the host is gone, nothing comes back. No byte
is ever read from a door, so nothing can be sent through it.

Whether the hosts of a job are all there: each knocks at the next one's door.

    host 0 --> host 1 --> host 2 --> host 0      by its first rank: nobody is knocked at by all
"""

from __future__ import annotations

import contextlib
import socket
import time

from labkit.comm.hosts.environment import Environment
from labkit.comm.hosts.roll_call import Place, RollCall

NO_PROCESS = "has no such process any more"
SILENT = "does not answer"
_EVERY_S = 2.0
_AGAIN_S = 0.5
_WAIT_S = 1.5
_KNOCKS = 3


class Door:
    """This process's door, open from now until the process ends."""

    def __init__(self) -> None:
        """Listen on a free port, for IPv4 and, where this host has it, IPv6."""
        self._socket = _listening()
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def answer(self) -> None:
        """Let those who have knocked go again, so that there is room for others."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """In a forked child: the door is its parent's."""
        self._socket.close()


def knock(address: str, port: int, wait_s: float) -> str | None:
    """None where the door is open; otherwise NO_PROCESS, or SILENT after `wait_s`."""
    try:
        with socket.create_connection((address, port), wait_s):
            return None
    except ConnectionRefusedError:
        return NO_PROCESS
    except OSError:
        return SILENT


class Knocks:
    """Knocks at many doors: where a host is silent at the first one, it is so at the others."""

    def __init__(self, wait_s: float) -> None:
        """wait_s: for each answer."""
        self._wait_s = wait_s
        self._answering: set[int] = set()
        self._silent: set[int] = set()

    def at(self, place: Place) -> str | None:
        """As `knock`; a host that is gone is waited for once, and not for each of its ranks."""
        host = place.host_number
        if host in self._silent:
            return SILENT
        answer = knock(place.address, place.door, self._wait_s)
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
    """The one after ours."""

    def __init__(self, environment: Environment, call: RollCall) -> None:
        """environment: of one of our ranks; its host's first does the knocking."""
        self._place = _door_after(environment, call) if environment.local_rank == 0 else None
        self._next_knock_s = time.monotonic() + _EVERY_S
        self._num_unanswered = 0

    def is_gone(self) -> bool:
        """Knock, if it is time to; whether nobody has answered several times."""
        if self._place is None or time.monotonic() < self._next_knock_s:
            return False
        is_silent = knock(self._place.address, self._place.door, _WAIT_S) is not None
        self._num_unanswered = self._num_unanswered + 1 if is_silent else 0
        self._next_knock_s = time.monotonic() + (_AGAIN_S if is_silent else _EVERY_S)
        return self._num_unanswered >= _KNOCKS


def _door_after(environment: Environment, call: RollCall) -> Place | None:
    """Of the first rank on the next host; None where there is one host only."""
    places = call.places
    hosts = sorted({place.host_number for place in places})
    if len(hosts) == 1:
        return None
    after = hosts[(hosts.index(environment.host_number) + 1) % len(hosts)]
    return next(place for place in places if place.host_number == after)
