"""Code of the program's that threads of torch's run, which have no Python frame until then.

    work.get_future().then(lambda future: dist.send(x, 1))     in a thread of gloo's
    an RPC from another rank                                   in one of TensorPipe's

A rank that blocks with such a callback ahead of it may still post what others wait for.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

_lock = threading.Lock()
_num_ahead = 0


def install() -> None:
    """Count the callbacks of futures that have been handed over and have not returned yet."""
    for name in ("then", "add_done_callback"):
        original = getattr(torch._C.Future, name)
        if not hasattr(original, "_is_counted"):
            setattr(torch._C.Future, name, _counted(original))


def are_ahead() -> bool:
    """Whether some thread of torch's may run code of the program's yet."""
    rpc = sys.modules.get("torch.distributed.rpc.api")
    serves = rpc is not None and rpc._is_current_rpc_agent_set()
    return bool(_num_ahead or serves)


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def handed_over(future: Any, callback: Callable[..., Any]) -> Any:
        @functools.wraps(callback, updated=())
        def called(*args: Any) -> Any:
            try:
                return callback(*args)
            finally:
                _add(-1)

        _add(1)
        try:
            return original(future, called)
        except BaseException:
            _add(-1)
            raise

    handed_over._is_counted = True  # type: ignore[attr-defined]
    return handed_over


def _add(number: int) -> None:
    global _num_ahead
    with _lock:
        _num_ahead += number
