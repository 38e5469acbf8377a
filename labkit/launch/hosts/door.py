"""A door that can be knocked at: does a rank on another host still live?

Each rank listens on a port and says nothing there. While its process lives, a connection succeeds;
when the process is gone, the kernel refuses it; when the host is gone, nothing comes back. No byte
is ever read from a door, so nothing can be sent through it.
"""

import contextlib
import socket

from labkit.comm.hosts.roll_call import Place

NO_PROCESS = "has no such process any more"
SILENT = "does not answer"


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
