"""Folders named after the process that made them, so that those of dead ones can be removed."""

import os
import shutil
import socket
import tempfile
from pathlib import Path


def make(parent: Path, kind: str) -> Path:
    """Make a folder in `parent` that only this user can read, `labkit-{kind}-{host}-{pid}-...`.

    Folders of the same kind whose makers are no longer alive are removed. OSError where no folder
    can be made.
    """
    # With the host's name: containers may share a /tmp, and do not see each other's processes.
    prefix = f"labkit-{kind}-{socket.gethostname()}-"
    _sweep(parent, prefix)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def _sweep(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)  # another user's folder stays


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
