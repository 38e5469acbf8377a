"""Closing a group: what split took is given back, by all members together.

torch.distributed's own destroy_process_group asks nobody. Whoever calls it early ends the others'
operations with a message about a connection that was reset, and they seem to have failed.
"""

from __future__ import annotations

from typing import NoReturn, Self

import torch.distributed as dist

from labkit.comm import process_groups
from labkit.comm.library_collectives import LibraryCollectives


class Closed:
    """Stands for what a closed group has let go of. Whatever is called on it is a RuntimeError."""

    def __init__(self, name: str) -> None:
        """`name`: the group's."""
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            f"the group {self._name} is closed, and so are its connections: use it before its "
            "close() or inside of its `with`, or make another one with split"
        )


class Closing(LibraryCollectives):
    """What a Group offers to end it."""

    def close(self) -> None:
        """Give back what split took: connections, open files and tables to compare by.

        Every member calls it, and waits for the others, as with MPI_Comm_free: none of them is in
        an operation of the group any more. Who calls another operation meanwhile gets a
        Disagreement. After that each call on the group is a RuntimeError; a second close does
        nothing. What was split from it lives on; a SharedMemory of it keeps its memory, and refuses
        operations.
        RuntimeError for the world, which ends with the run, and while an operation is in flight
        here, which is to be waited for first; then the group stays as it was.
        Wire: a barrier.
        """
        if self._of_torch is None:
            return
        self._require_can_close()
        self._meet("close")
        # Everybody has entered the last operation, so this sees all of them.
        self._agreement.leave()
        process_groups.destroy(self._of_torch)
        self._process_group = self._agreement = Closed(self.name)
        self._of_torch = None  # it holds its connections

    def __enter__(self) -> Self:
        """For the length of a `with`, then closed. RuntimeError for the world, or if closed."""
        self._agreement.require_in_step()
        self._require_can_close()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Close it; not where an error leads out, since the others may never come to their end."""
        if error_type is None:
            self.close()

    def _require_can_close(self) -> None:
        if self._of_torch == dist.group.WORLD:
            raise RuntimeError(f"{self.name} ends with the run: only what split gave is closed")
        if num := len(self._in_flight):
            raise RuntimeError(
                f"the group {self.name} has operations in flight on rank {self.ranks[self.rank]} "
                f"({num}): keep what wait=False, isend and irecv return, and call wait() on each "
                "before close()"
            )
