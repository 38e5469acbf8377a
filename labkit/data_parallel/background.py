"""An all-reduce that blocks, on a thread of its own, so that backward goes on meanwhile."""

import contextvars
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from torch import Tensor

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.buckets import Bucket
from labkit.data_parallel.reduction import (
    AllReduce,
    InFlight,
    PerBucket,
    all_reduces_of,
    begin,
    needs_buckets,
    require_all_reduce,
)


class InBackground:
    """A blocking all-reduce on a thread of its own: one after the other, in the order of calls.

        model = DDP(module, world, all_reduce=InBackground(ring_all_reduce, world))
        model = DDP(module, world, all_reduce=InBackground(TopK(0.01), world))

    It has a group of its own as well: messages of the thread and of the program would mix
    otherwise, in an order that differs by rank. Wire: what `all_reduce` sends.
    """

    def __init__(self, all_reduce: AllReduce | PerBucket, group: Group | None = None) -> None:
        """Every rank of `group` calls this: the thread's group is split off.

        group: None for torch.distributed's default one. TypeError for what is no all-reduce.
        """
        require_all_reduce(all_reduce)
        self._all_reduce = all_reduce
        own = chosen(group).split(0)
        assert isinstance(own, Group)
        self._group = own
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="all-reduce")

    @property
    def needs_buckets(self) -> bool:
        """Whether it is a compressor that is in the background."""
        return needs_buckets(self._all_reduce)

    def of(self, bucket: Bucket) -> AllReduce:
        """The all-reduce of one bucket; of a compressor, with a memory of its own."""
        (all_reduce,) = all_reduces_of(self._all_reduce, [bucket])
        return partial(self._begun, all_reduce)

    def __call__(self, x: Tensor, group: Group) -> InFlight:
        """Hand over `x`. ValueError for a group of other ranks than that of the construction."""
        assert not isinstance(self._all_reduce, PerBucket), "of(bucket) makes it one of a bucket"
        return self._begun(self._all_reduce, x, group)

    def _begun(self, all_reduce: AllReduce, x: Tensor, group: Group) -> InFlight:
        if group.ranks != self._group.ranks:
            raise ValueError(
                f"this all-reduce is between ranks {list(self._group.ranks)}, not "
                f"{list(group.ranks)}; make one InBackground per group"
            )
        context = contextvars.copy_context()  # so that the operations keep their label
        return _OfThread(self._thread.submit(context.run, self._sum, all_reduce, x))

    def _sum(self, all_reduce: AllReduce, x: Tensor) -> Tensor:
        total: Tensor = begin(all_reduce, x, self._group).wait()
        return total


class _OfThread:
    def __init__(self, future: "Future[Tensor]") -> None:
        self._future = future

    def wait(self) -> Tensor:
        return self._future.result()
