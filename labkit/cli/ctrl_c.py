"""Ctrl-C in a command, from its first line to its last.

    main() begins, modules are imported    the process ends at once
    the command runs                       KeyboardInterrupt: `finally` clauses have their turn
    the command imports torch              at once
    the command has returned               at once

All of them end in status 130 and print no traceback. An import must not be interrupted by an
exception: torch's C++ code prints it, makes another error of it, or loses it.

A command that a shell's script has started in the background ignores SIGINT, and goes on to.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130
"""The exit status: 128 and the number of SIGINT, as shells count."""


def ends_at_once() -> None:
    """From here on Ctrl-C ends the process at once, if it would raise KeyboardInterrupt now."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raises() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, if it would end the process at once now."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """For a block of imports, within a command."""
    before = signal.getsignal(signal.SIGINT)
    ends_at_once()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_fork_server() -> None:
    """End the server that ranks are forked from, if there is one, and with it all ranks.

    By itself it would end when this process is gone and its own import of torch is over.
    """
    module = sys.modules.get("multiprocessing.forkserver")
    pid = getattr(getattr(module, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(BaseException):
        end_fork_server()
        _remove_its_folder()
    os._exit(INTERRUPTED)


def _remove_its_folder() -> None:
    """Remove what multiprocessing would remove when the interpreter ends, which it does not now."""
    module = sys.modules.get("multiprocessing.process")
    if module is not None and (folder := module.current_process()._config.get("tempdir")):
        import shutil  # it is there, with tempfile

        shutil.rmtree(folder, ignore_errors=True)
