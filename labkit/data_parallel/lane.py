"""A lane: collectives on a thread of its own, one after the other, while the rank computes.

    compute   layer 2 | layer 1 | layer 0
    lane              | bucket 0 | bucket 1 |

It has a group of its own: messages of the thread and of the program would mix otherwise, in an
order that differs by rank. Every rank begins the same calls in the same order.

A group has one lane, which all wrappers share. Threads and sockets are never given back (a process
group cannot be taken down while another rank may be in it), so they must not become more with every
model that is wrapped.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from labkit.comm import Group
from labkit.comm.callers import as_handed_over_here

T = TypeVar("T")


class Lane:
    """Runs what it is given in the background, in the order of calls. `Lane.of` makes it."""

    def __init__(self, group: Group) -> None:
        self._own: WeakKeyDictionary[Group, Group] = WeakKeyDictionary()
        self.group = self.own(group)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lane")
        weakref.finalize(self, self._thread.shutdown, wait=False).atexit = False

    @classmethod
    def of(cls, group: Group) -> Lane:
        """The lane of a group, whose ranks all call this: the first call splits off a group."""
        if group not in _LANES:
            _LANES[group] = cls(group)
        return _LANES[group]

    def own(self, group: Group) -> Group:
        """The same ranks, for messages on this lane. All of them call it, as with `of`."""
        if group not in self._own:
            own = group.split(0)
            assert isinstance(own, Group)
            self._own[group] = own
        return self._own[group]

    def begin(self, collective: Callable[[Group], T]) -> Future[T]:
        """Call `collective(group of the lane)` when those before are done; `.result()` waits."""
        # So that the operations keep their label, and the line that they are begun at.
        context = as_handed_over_here(contextvars.copy_context())
        return self._thread.submit(context.run, _on_the_same_stream(collective, self.group))


_LANES: WeakKeyDictionary[Group, Lane] = WeakKeyDictionary()


def _on_the_same_stream(collective: Callable[[Group], T], group: Group) -> Callable[[], T]:
    """On a GPU in the order of the caller's stream: a thread has another one, the default."""
    if group.device.type != "cuda":
        return lambda: collective(group)
    stream = torch.cuda.current_stream(group.device)

    def ordered() -> T:
        with torch.cuda.stream(stream):
            return collective(group)

    return ordered
