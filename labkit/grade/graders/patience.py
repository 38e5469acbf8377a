"""Waiting for a backend's thread, which lets go of a tensor a little after it is done."""

import time
from collections.abc import Callable

_IN_ALL_S, _AT_ONCE_S, _PAUSE_S = 0.5, 0.1, 0.001


class Patience:
    """Short waits, none longer than a tenth of a second, all of them together half a second."""

    def __init__(self) -> None:
        self._left_s = _IN_ALL_S

    def wait_while(self, is_held: Callable[[], bool]) -> None:
        """Until it no longer holds: what is there after that, somebody keeps."""
        until_s = max(self._left_s - _AT_ONCE_S, 0)
        while self._left_s > until_s and is_held():
            time.sleep(_PAUSE_S)
            self._left_s -= _PAUSE_S
