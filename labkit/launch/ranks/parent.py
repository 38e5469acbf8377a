"""A process that ends with the one that started it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """From now on, by SIGKILL; on Linux only. A killed agent leaves its workers alive otherwise.

    parent: its process id, where the caller knows it from before the fork. The kernel tells only
    of deaths after this call; a process with another parent afterwards has missed one, and ends.
    """
    if not sys.platform.startswith("linux"):
        return
    known = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != known:
        os.kill(os.getpid(), signal.SIGKILL)
