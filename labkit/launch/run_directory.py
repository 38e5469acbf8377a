"""The folder of one run: what the driver and its ranks leave for each other.

payload            the function and its arguments (cloudpickle)
store              where the ranks meet (torch's FileStore)
rank-2.journal     what rank 2 did on its groups; rank-2.names goes with it
rank-2.stack       where rank 2 was when it was asked (faulthandler)
rank-2.recorder    what torch itself had recorded of rank 2 when it was asked (flight_recorder.py)
rank-2.value       what rank 2 returned (cloudpickle)
world.calls.0      what each rank means, to be compared by the others, and world.0-1.0, of
                   messages: a few of each for every group (comm/agreement)
links              of a topology: when each is free; links.* go with it (comm/pacing)
labkit-fifos-*     while ranks meet in shared memory (comm/shared_memory)

rank-2.spec        with engine="torchrun": how rank 2 is to begin (pickle)
torchrun.log       and what torchrun printed; its own logs are in torchrun/
rank-2.clock       on several hosts: what rank 2's clock read when it had joined the world
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from labkit.comm import owned_folder


class RunDirectory:
    """Made for one run, readable by this user only, and removed when the run ends."""

    def __init__(self) -> None:
        """Make the folder; remove those of drivers that are no longer alive."""
        try:
            self.path = owned_folder.make(Path(tempfile.gettempdir()), "run")
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
        """The file of one rank. `kind`: its ending, such as journal, stack or value."""
        return self.path / f"rank-{rank}.{kind}"

    def remove(self) -> None:
        """Delete the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
