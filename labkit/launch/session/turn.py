"""One thing at a time on the ranks of a session, whichever thread asks for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Busy(RuntimeError):
    """The ranks are at work for somebody else."""


class Turn:
    """What somebody must have who starts ranks, ends them, or sends them a command."""

    def __init__(self) -> None:
        """Nobody has it."""
        self._lock = threading.Lock()
        self._holder: int | None = None

    @contextlib.contextmanager
    def taken(self, *, waits: bool = False) -> Iterator[None]:
        """Have it for a block. Raises Busy where another has it; `waits`: until that one is done.

        Who has it already never waits: a handler of signals, say, runs in the midst of a cell.
        """
        if self._holder == threading.get_ident():
            raise Busy("this session is in the midst of a cell; ask again when that has ended")
        if not self._lock.acquire(blocking=waits):
            raise Busy(
                "this session is at work for another thread; wait until that has ended, or make a "
                "session for each thread"
            )
        try:
            self._holder = threading.get_ident()
            yield
        finally:
            self._holder = None
            self._lock.release()
