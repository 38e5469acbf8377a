"""A log of rollouts, each of which is learned from exactly once, whenever the job is killed.

An interviewer asks: "Generating rollouts takes most of the time of RL training, so you keep them in
a log on disk. The job is killed at any moment, the machine too. How do you see to it that no
rollout is lost, and that none is learned from twice? What exactly is in the file?"

Write the class `RolloutLog`. The job uses it like this:

    log = RolloutLog(disk)                         # after each start
    parameters, state = load()                     # the newest checkpoint
    log.load_state_dict(state)                     # only where there is a checkpoint
    ...
    log.append(rollouts)                           # whenever some were generated
    ...
    parameters = learn(parameters, log.take(64))   # a step
    save(parameters, log.state_dict())             # a checkpoint: all of it is durable, or nothing

    disk.read(name)            all bytes of a file; b"" if there is no such file
    disk.append(name, data)    writes behind the end of a file, or makes it
    disk.truncate(name, size)  leaves the first bytes of a file
    disk.sync(name)            returns when everything that was done to the file is durable
                               Both treat a file that does not exist as an empty one

The job can be killed before, in and after each operation. What is left then:
    the process was killed  what was done to the files. Of an append it was killed in, a first part
    the power was cut       what was synced, and of the operations on a file since then the first
                            ones. Of an append behind these, a first part may be there, or all of it
                            with zeros for some bytes: a file can grow before they are written

Contract
    append(rollouts)  adds a list of rollouts. A rollout is any bytes, 1 or more. When append
                      returns, the rollouts are durable
    take(count)       returns the next rollouts, oldest first; fewer, or none, if fewer are left.
                      What it returns is durable
    state_dict()      returns plain data, as JSON has it, for the checkpoint
    load_state_dict(state)  goes on behind the rollouts that were taken when `state` was made
    files             the log's: the names and the format are up to you. Nothing else writes to them
    exactly once      The parameters of the newest checkpoint have learned from no rollout twice,
                      and in the end from each whose append has returned. If the job was killed in
                      append, its rollouts may be used or not, but each one as it was
"""

import struct
import zlib
from typing import Any, Protocol


class Disk(Protocol):
    """The disk that the log writes to."""

    def read(self, name: str) -> bytes:
        """All bytes of a file."""

    def append(self, name: str, data: bytes) -> None:
        """Write behind the end of a file."""

    def truncate(self, name: str, size: int) -> None:
        """Leave the first bytes of a file."""

    def sync(self, name: str) -> None:
        """Make durable what was done to a file."""


class RolloutLog:
    """The rollouts of a job, in the order of append, and how many were taken."""

    def __init__(self, disk: Disk) -> None:
        """Open the log, whatever was left of it."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def append(self, rollouts: list[bytes]) -> None:
        """Add rollouts. They are durable when it returns."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def take(self, count: int) -> list[bytes]:
        """Return the next rollouts, fewer where fewer are left."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint has to know of the log."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the rollouts that were taken when `state` was made."""
        raise NotImplementedError("not attempted yet: your code replaces this line")
