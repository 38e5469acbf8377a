"""A lane: collectives on a thread of its own, one after the other, while the rank computes.

    compute   layer 0 | layer 1 | layer 2
    lane      gather 1| gather 2|

It has a group of its own: messages of the thread and of the program would mix otherwise, in an
order that differs by rank. Every rank begins the same calls in the same order.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from labkit.comm import Group

T = TypeVar("T")


class Lane:
    """Runs what it is given in the background, in the order of calls."""

    def __init__(self, group: Group, name: str) -> None:
        """Every rank of `group` makes it: the lane's group is split off."""
        own = group.split(0)
        assert isinstance(own, Group)
        self.group = own
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        weakref.finalize(self, self._thread.shutdown, wait=False).atexit = False

    def begin(self, collective: Callable[[Group], T]) -> Future[T]:
        """Call `collective(group of the lane)` when those before are done; `.result()` waits."""
        context = contextvars.copy_context()  # so that the operations keep their label
        return self._thread.submit(context.run, _on_the_same_stream(collective, self.group))


def _on_the_same_stream(collective: Callable[[Group], T], group: Group) -> Callable[[], T]:
    """On a GPU in the order of the caller's stream: a thread has another one, the default."""
    if group.device.type != "cuda":
        return lambda: collective(group)
    stream = torch.cuda.current_stream(group.device)

    def ordered() -> T:
        with torch.cuda.stream(stream):
            return collective(group)

    return ordered
