"""Threads that are started past `threading`: no profile function of its greets them.

For as long as they are refused, the functions of `_thread` that start one have a caller to show.
Python 3.11 has no audit event for it.
"""

import _thread
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

_STARTERS = (
    (_thread, "start_new_thread"),
    (_thread, "start_new"),
    (_thread, "start_joinable_thread"),  # from Python 3.13 on
    (threading, "_start_new_thread"),
    (threading, "_start_joinable_thread"),
)
_THERE = [(module, name) for module, name in _STARTERS if hasattr(module, name)]


class BareThreads:
    """Between `refuse` and `allow`, starting one raises what `error()` returns."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self._error = error
        self._replaced: list[Any] = []

    def refuse(self) -> None:
        """From now on; threading's own are as before."""
        self._replaced = [getattr(module, name) for module, name in _THERE]
        for (module, name), start in zip(_THERE, self._replaced, strict=True):
            setattr(module, name, self._checked(start))

    def allow(self) -> None:
        """As it was."""
        for (module, name), start in zip(_THERE, self._replaced, strict=True):
            setattr(module, name, start)

    def _checked(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def checked(*args: Any, **options: Any) -> Any:
            if sys._getframe(1).f_code.co_filename != threading.__file__:
                raise self._error()
            return start(*args, **options)

        return checked
