"""How many bytes this process has put on TCP sockets, as the kernel counts them.

This is the witness that nothing in Python can argue with: the journal says what a rank meant to
send, TCP_INFO says what left. Linux only.
"""

import os
import socket
import struct
import sys

# tcpi_bytes_sent and tcpi_bytes_retrans in struct tcp_info (linux/tcp.h, since 4.19)
_SENT_AND_SENT_AGAIN = struct.Struct("=QQ")
_SENT_AT = 200


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
