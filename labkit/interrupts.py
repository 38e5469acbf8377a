"""SIGINT, which Ctrl-C and Jupyter's Stop send to every process of a group.

    the driver     KeyboardInterrupt, but not in the middle of a step that must be whole
    its forks      start with SIGINT blocked, leave the group, and drop signals until then

A process that a shell script starts in the background ignores SIGINT, and so do its children. A
driver keeps ignoring it; its ranks do not.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def uninterrupted(*, quietly: bool = False) -> Iterator[None]:
    """Postpone a KeyboardInterrupt to the end of the block; `quietly` drops it.

    It acts only if Python's own handler would raise it: in the main thread, and unless the program
    has its own handler of SIGINT.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    presses: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        presses.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if presses and not quietly:
        raise KeyboardInterrupt


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Start processes with SIGINT blocked, until they leave the group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_group() -> None:
    """Lead a new session, and handle SIGINT like a Python program at a terminal.

    Ignoring SIGINT drops earlier ones. This must come after setsid(), because Linux keeps a blocked
    signal even while it is ignored.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
