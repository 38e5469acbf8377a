"""Stretches of the driver that Stop must not cut in two: starting a rank, ending all of them."""

import contextlib
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
