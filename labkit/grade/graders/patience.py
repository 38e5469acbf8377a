"""Waiting for a backend's thread, which lets go of a tensor a little after it is done."""

import time
from collections.abc import Callable

_PAUSE_S = 0.001
_AT_ONCE, _IN_ALL = 100, 500


class Patience:
    """Waits of pauses of a millisecond: 100 pauses at most in each, 500 in all of them together."""

    def __init__(self) -> None:
        self._num_left = _IN_ALL

    def wait_while(self, is_held: Callable[[], bool]) -> None:
        """Until it no longer holds: what is there after that, somebody keeps."""
        until = max(self._num_left - _AT_ONCE, 0)
        while self._num_left > until and is_held():
            time.sleep(_PAUSE_S)
            self._num_left -= 1
