"""SIGINT, which Ctrl-C and Jupyter's Stop send to every process of a group.

    the driver     KeyboardInterrupt, but not in the middle of a step that must be whole
    what it forks  is born with SIGINT blocked, leaves the group, and drops what came until then

A process that a shell's script has started in the background ignores SIGINT, and hands that on to
what it starts. A driver keeps to it; its ranks do not.
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

    Only where Python's own handler would raise it: in the main thread, and not for a program that
    handles SIGINT in a way of its own.
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
    """Let a process that the block starts have SIGINT blocked, until it leaves the group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_group() -> None:
    """Lead a session of its own, and hear SIGINT as a Python program at a terminal does.

    To ignore SIGINT drops what came before, and this must be after setsid(): Linux keeps a signal
    that is blocked even while it is ignored.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
