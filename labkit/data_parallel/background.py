"""A communication thread: collectives in the background, one after the other.

    main thread             layer 2 | layer 1 | layer 0
    communication thread            | bucket 0 | bucket 1 |

BackgroundAllReduce is a blocking all-reduce on that thread, while backward goes on.

The thread has a group of its own. Otherwise its messages would mix with the program's, in an order
that differs by rank. Every rank starts the same calls in the same order.

All wrappers of a group share one communication thread. A process group cannot be destroyed while
another rank may still use it, so its thread and its sockets stay until the process ends. A thread
for each wrapper would leak both.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labkit.collectives.backend import Handle
from labkit.comm import Group
from labkit.comm.callers import attribute_to_caller
from labkit.comm.group import chosen
from labkit.comm.operation import WAITS
from labkit.data_parallel.bucketed import Bucket
from labkit.data_parallel.reduction import AllReduce, Reduction, reduction_of

T = TypeVar("T")


class BackgroundAllReduce(Reduction):
    """A blocking all-reduce on the group's communication thread, in the order of calls.

        model = DDP(module, world, all_reduce=BackgroundAllReduce(ring_all_reduce, world))
        model = DDP(module, world, all_reduce=BackgroundAllReduce(TopK(0.01), world))

    Wire: what `all_reduce` sends.
    """

    def __init__(self, all_reduce: AllReduce, group: Group | None = None) -> None:
        """Split off the thread's group, unless it exists. Every rank of `group` calls this.

        group: None for torch.distributed's default one. TypeError for anything but an all-reduce.
        """
        self._within = reduction_of(all_reduce)
        self.remembers_buckets = self._within.remembers_buckets
        self._group = chosen(group)
        self._thread = CommunicationThread.for_group(self._group)

    def for_bucket(self, bucket: Bucket) -> Reduction:
        """Return the reduction of one bucket, in the background."""
        return BackgroundAllReduce(self._within.for_bucket(bucket), self._group)

    def start(self, x: Tensor, group: Group) -> Handle:
        """Submit `x` to the thread. ValueError unless `group` has the constructor's ranks."""
        if group.ranks != self._group.ranks:
            raise ValueError(
                f"this all-reduce is between ranks {list(self._group.ranks)}, not "
                f"{list(group.ranks)}; make one BackgroundAllReduce per group"
            )
        return self._thread.start(partial(self._within, x))


class CommunicationThread:
    """Runs collectives in the background, in the order of calls. Get one with `for_group`."""

    def __init__(self, group: Group) -> None:
        self._thread_groups: WeakKeyDictionary[Group, Group] = WeakKeyDictionary()
        self.group = self.own_group(group)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="communication")
        weakref.finalize(self, self._executor.shutdown, wait=False).atexit = False

    @classmethod
    def for_group(cls, group: Group) -> CommunicationThread:
        """Return the thread of a group. All ranks call this: the first call splits off a group."""
        if group not in _THREADS:
            _THREADS[group] = cls(group)
        return _THREADS[group]

    def own_group(self, group: Group) -> Group:
        """Return this thread's group of the ranks of `group`. All ranks call it, as `for_group`."""
        if group not in self._thread_groups:
            own = group.split(0)
            assert isinstance(own, Group)
            self._thread_groups[group] = own
        return self._thread_groups[group]

    def start(self, collective: Callable[[Group], T]) -> BackgroundHandle[T]:
        """Call `collective(group of the thread)` after the earlier calls; on nccl, immediately.

        nccl is asynchronous by itself. It needs the operations of all groups in the same order on
        every rank, but a second thread would start its own at any time between the main thread's.
        """
        if self.group.backend == "nccl":
            done = Future[T]()
            done.set_result(collective(self.group))
            return BackgroundHandle(done, self.group)
        # The operations keep the caller's label and line.
        context = attribute_to_caller(contextvars.copy_context())
        call = _on_the_same_stream(collective, self.group)
        return BackgroundHandle(self._executor.submit(context.run, call), self.group)


class BackgroundHandle(Generic[T]):
    """A collective that a communication thread carries out."""

    def __init__(self, future: Future[T], group: Group) -> None:
        self._future, self._group = future, group

    def wait(self) -> T:
        """Block until the collective is done; return its result, or raise its error."""
        with self._group.region(WAITS):
            return self._future.result()


_THREADS: WeakKeyDictionary[Group, CommunicationThread] = WeakKeyDictionary()


def _on_the_same_stream(collective: Callable[[Group], T], group: Group) -> Callable[[], T]:
    """Return a call of the collective on the caller's GPU stream, not on the default stream."""
    if group.device.type != "cuda":
        return lambda: collective(group)
    stream = torch.cuda.current_stream(group.device)

    def ordered() -> T:
        with torch.cuda.stream(stream):
            return collective(group)

    return ordered
