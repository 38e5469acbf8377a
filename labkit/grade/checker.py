"""Checks beside whatever else goes on: begun, stopped, and their answers taken when they are there.

    checker.begin("scan", workspace)    -> check_server.py: check("scan"), on ranks
    checker.stop()                      -> SIGINT there: the check ends, and its ranks with it
    checker.take()                      <- Answer, of the check that was begun last

A process of its own answers while a check computes, and Python's lock is not in the way. It stays
from check to check: torch is imported once, and so is what ranks are forked from.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from labkit.grade.check_server import Answer, Request, command
from labkit.grade.workspace import Workspace

_AGAIN_S = 1.0  # a check that is stopped ends within half a second, once it has begun
_TO_STOP_S = 30.0  # it may be at its imports still, on a busy machine
_TO_LEAVE_S = 3.0
_LAST_LINES = 5


class Checker:
    """One check at a time. `is_busy`: whether one was begun whose answer was not taken yet."""

    def __init__(self) -> None:
        """Start the process, which takes seconds to import torch; this returns at once.

        On Linux it ends with the thread that starts it: the main thread, most often.
        """
        self.is_busy = False
        self._stopped_s: float | None = None
        self._told_s = 0.0
        self._is_there = False
        self._start()

    def _start(self) -> None:
        self._control, theirs = multiprocessing.Pipe()
        self._errors = tempfile.TemporaryFile()
        # A signal would end it at its imports; a blocked one stays blocked in a child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self._process = self._process_with(theirs.fileno())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._is_there = True

    def _process_with(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command(descriptor), *sys.path],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            # Ctrl-C in a terminal is for the process that watches, which ends this one.
            start_new_session=True,
        )

    @property
    def process_id(self) -> int:
        """Of the process that checks, or of the last one."""
        return self._process.pid

    @property
    def handles(self) -> list[Connection]:
        """What becomes readable when `take` has something to take."""
        return [self._control] if self._is_there else []

    def begin(self, name: str, workspace: Workspace, timeout_s: float = 10.0) -> None:
        """Start a check of the learner's file. Raises RuntimeError while another one runs."""
        if self.is_busy:
            raise RuntimeError(f"a check runs already; stop it before you begin one of {name}")
        request = Request(name, workspace, timeout_s)
        try:
            if not self._is_there:
                self._start()
            self._control.send(request)
        except OSError:  # somebody has ended the process while it had nothing to do
            self._bury()
            self._start()
            self._control.send(request)
        self.is_busy, self._stopped_s = True, None

    def stop(self) -> None:
        """Tell the check that runs to end; its answer comes all the same."""
        if self.is_busy and self._stopped_s is None:
            self._stopped_s = self._told_s = time.monotonic()
            self._signal(signal.SIGINT)

    def _insist(self) -> None:
        """Tell it again, if it was told to end and goes on; end a process that does not hear."""
        now_s = time.monotonic()
        if self._stopped_s is None or now_s < self._told_s + _AGAIN_S:
            return
        self._told_s = now_s
        is_deaf = now_s > self._stopped_s + _TO_STOP_S
        self._signal(signal.SIGKILL if is_deaf else signal.SIGINT)

    def take(self) -> Answer | None:
        """The answer of the check that was begun; None while there is none yet.

        Ask now and then while a check is to stop, too: it is told again.
        """
        self._insist()
        if not self._is_there or not self._control.poll():
            return None
        was_busy, was_stopped = self.is_busy, self._stopped_s is not None
        try:
            answer: Answer | None = self._control.recv()
        except (EOFError, OSError):
            ended = self._bury()
            answer = Answer(trouble="" if was_stopped else ended) if was_busy else None
        self.is_busy, self._stopped_s = False, None
        return answer

    def close(self) -> None:
        """No process of it is left when this returns, and no rank."""
        if not self._is_there:
            return
        self.stop()
        self._control.close()
        # After that it is killed, and its ranks go with it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_LEAVE_S)
        self._bury()

    def _bury(self) -> str:
        """Wait for the process, ending it if need be; how it ended, in words."""
        self._control.close()
        self._is_there = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_AGAIN_S)  # its end of the pipe is closed: it is about to end
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        how = f"with status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return "\n".join([f"the process that checks has ended {how}", *said[-_LAST_LINES:]])

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
