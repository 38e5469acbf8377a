"""An all-reduce that blocks, on the group's lane, so that backward goes on meanwhile."""

from concurrent.futures import Future
from functools import partial

from torch import Tensor

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.buckets import Bucket
from labkit.data_parallel.lane import Lane
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
    """A blocking all-reduce on a thread, the group's Lane: one after the other, in order of calls.

        model = DDP(module, world, all_reduce=InBackground(ring_all_reduce, world))
        model = DDP(module, world, all_reduce=InBackground(TopK(0.01), world))

    Wire: what `all_reduce` sends.
    """

    def __init__(self, all_reduce: AllReduce | PerBucket, group: Group | None = None) -> None:
        """Every rank of `group` calls this: the first time, the lane's group is split off.

        group: None for torch.distributed's default one. TypeError for what is no all-reduce.
        """
        require_all_reduce(all_reduce)
        self._all_reduce = all_reduce
        self._lane = Lane.of(chosen(group))

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
        ranks = self._lane.group.ranks
        if group.ranks != ranks:
            raise ValueError(
                f"this all-reduce is between ranks {list(ranks)}, not "
                f"{list(group.ranks)}; make one InBackground per group"
            )
        return _OfLane(self._lane.begin(partial(_sum, all_reduce, x)))


def _sum(all_reduce: AllReduce, x: Tensor, group: Group) -> Tensor:
    total: Tensor = begin(all_reduce, x, group).wait()
    return total


class _OfLane:
    def __init__(self, future: Future[Tensor]) -> None:
        self._future = future

    def wait(self) -> Tensor:
        return self._future.result()
