"""A door that can be knocked at: does a rank on another host still live?

Each rank listens on a port and says nothing there. While its process lives, a connection succeeds;
when the process is gone, the kernel refuses it; when the host is gone, nothing comes back. No byte
is ever read from a door, so nothing can be sent through it.
"""

import contextlib
import socket


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
    """None where the door is open; otherwise what its silence means, in words."""
    try:
        with socket.create_connection((address, port), wait_s):
            return None
    except ConnectionRefusedError:
        return "has no such process any more"
    except OSError:
        return "does not answer"


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is there, but turned off
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=64)
