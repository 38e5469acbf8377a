"""The folder of one run: what the driver and its ranks leave for each other.

payload            the function and its arguments (cloudpickle)
store              where the ranks meet (torch's FileStore)
rank-2.journal     what rank 2 did on its groups; rank-2.names goes with it
rank-2.stack       where rank 2 was when it was asked (faulthandler)
rank-2.value       what rank 2 returned (cloudpickle)
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

# With the host's name: containers may share a /tmp, and do not see each other's processes.
_PREFIX = f"labkit-run-{socket.gethostname()}-"


class RunDirectory:
    """Made for one run, readable by this user only, and removed when the run ends."""

    def __init__(self) -> None:
        """Make the folder; remove those of drivers that are no longer alive."""
        try:
            _sweep(Path(tempfile.gettempdir()))
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise RuntimeError(
                f"a run needs a folder for temporary files, and none can be made: {error}. Make "
                "room there, or name another one in the environment variable TMPDIR"
            ) from error

    @classmethod
    def at(cls, path: str | Path) -> RunDirectory:
        """A folder that another process of the run has made."""
        directory = cls.__new__(cls)
        directory.path = Path(path)
        return directory

    @property
    def payload(self) -> Path:
        """The function and what it is called with."""
        return self.path / "payload"

    @property
    def store(self) -> Path:
        """Where the ranks meet."""
        return self.path / "store"

    def of_rank(self, rank: int, kind: str) -> Path:
        """The file of one rank: kind is journal, stack or value."""
        return self.path / f"rank-{rank}.{kind}"

    def remove(self) -> None:
        """Delete the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove the folders that killed drivers left behind."""
    for path in parent.glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)  # another user's: stays, without a word


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
