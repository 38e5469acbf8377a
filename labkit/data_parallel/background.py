"""An all-reduce that blocks, on the group's lane, so that backward goes on meanwhile."""

from concurrent.futures import Future
from functools import partial

from torch import Tensor

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.bucketed import Bucket
from labkit.data_parallel.lane import Lane
from labkit.data_parallel.reduction import AllReduce, Handle, Reduction, reduction_of


class InBackground(Reduction):
    """A blocking all-reduce on a thread, the group's Lane: one after the other, in order of calls.

        model = DDP(module, world, all_reduce=InBackground(ring_all_reduce, world))
        model = DDP(module, world, all_reduce=InBackground(TopK(0.01), world))

    Wire: what `all_reduce` sends.
    """

    def __init__(self, all_reduce: AllReduce, group: Group | None = None) -> None:
        """Every rank of `group` calls this: the first time, the lane's group is split off.

        group: None for torch.distributed's default one. TypeError for what is no all-reduce.
        """
        self._within = reduction_of(all_reduce)
        self._group = chosen(group)
        self._lane = Lane.of(self._group)

    @property
    def remembers_buckets(self) -> bool:  # type: ignore[override]
        """Whether the all-reduce that is in the background does."""
        return self._within.remembers_buckets

    def of(self, bucket: Bucket) -> Reduction:
        """The reduction of one bucket, in the background."""
        return InBackground(self._within.of(bucket), self._group)

    def start(self, x: Tensor, group: Group) -> Handle:
        """Hand over `x`. ValueError for a group of other ranks than that of the construction."""
        if group.ranks != self._group.ranks:
            raise ValueError(
                f"this all-reduce is between ranks {list(self._group.ranks)}, not "
                f"{list(group.ranks)}; make one InBackground per group"
            )
        return _OfLane(self._lane.begin(partial(self._within, x)))


class _OfLane:
    def __init__(self, future: Future[Tensor]) -> None:
        self._future = future

    def wait(self) -> Tensor:
        return self._future.result()
