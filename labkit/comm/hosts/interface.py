"""Which of this host's network interfaces reaches another host.

gloo needs the interface's name in GLOO_SOCKET_IFNAME; left to itself it takes the address that this
host's own name stands for, which often is 127.0.1.1. A variable that is set already is respected:
that is how to choose another interface.
"""

import contextlib
import os
import socket
import struct
import sys

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def address_towards(host: str) -> str:
    """The address of this host that packets to `host` leave from. OSError: there is no way."""
    family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # of a datagram socket: only looks up the route, sends nothing
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the interface with this IPv4 address; None where it is not known."""
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
    """Tell gloo to use the interface with `address`; None: the loopback, for ranks of one host."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = interface_of(address) if address else "lo0" if sys.platform == "darwin" else "lo"
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name
