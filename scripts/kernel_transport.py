"""Print how Jupyter reaches its kernels here: ipc, by sockets that are files, or tcp.

A TCP port is chosen a second before a kernel binds it. Meanwhile another process may be given it,
such as a rank of another notebook. Files have names of their own. They are not possible where the
path of a socket would be too long, or where a file system has no sockets, as some network folders.
"""

import argparse
import os
import socket
import tempfile
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

LONGEST = 103
"""Characters of a socket's path on macOS; Linux has room for 107."""
NAME = "kernel-01234567-89ab-cdef-0123-456789abcdef-ipc-5"


def transport(folder: str) -> str:
    """Return the transport of kernels with connection files in `folder`, which is made if
    missing."""
    if len(f"{folder}/{NAME}") > LONGEST:
        return "tcp"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix="k") as own,
            socket.socket(socket.AF_UNIX) as probe,
        ):
            probe.bind(str(Path(own) / "s"))
    except OSError:
        return "tcp"
    return "ipc"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    print(transport(jupyter_runtime_dir()))
