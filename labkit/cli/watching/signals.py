"""Signals as something to read, so that none of them comes in the middle of anything."""

import contextlib
import os
import signal
import socket
from types import TracebackType
from typing import Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SUSPENDING = signal.SIGTSTP
_TAKEN = (*ENDING, SUSPENDING, signal.SIGWINCH)  # the last: to draw anew


class Signals:
    """Those that end or suspend a program at a terminal, held back for the length of a block."""

    def __enter__(self) -> Self:
        self.handle, self._theirs = socket.socketpair()
        for end in (self.handle, self._theirs):
            end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _note) for number in _TAKEN}
        return self

    def take(self) -> list[int]:
        """The numbers of those that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self.handle.recv(4096))
        return []

    def suspend(self) -> None:
        """Do what Ctrl-Z asks for; returns when the program goes on."""
        signal.signal(SUSPENDING, signal.SIG_DFL)
        os.kill(os.getpid(), SUSPENDING)
        signal.signal(SUSPENDING, _note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.handle.close()
        self._theirs.close()


def _note(*_: object) -> None:
    """Python has written its number to the socket."""
