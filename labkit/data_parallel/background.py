"""An all-reduce that blocks, on the group's communication thread: backward goes on meanwhile."""

from functools import partial

from torch import Tensor

from labkit.collectives.wire import Handle
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.bucketed import Bucket
from labkit.data_parallel.communication_thread import CommunicationThread
from labkit.data_parallel.reduction import AllReduce, Reduction, reduction_of


class InBackground(Reduction):
    """A blocking all-reduce on the group's communication thread, in the order of calls.

        model = DDP(module, world, all_reduce=InBackground(ring_all_reduce, world))
        model = DDP(module, world, all_reduce=InBackground(TopK(0.01), world))

    Wire: what `all_reduce` sends.
    """

    def __init__(self, all_reduce: AllReduce, group: Group | None = None) -> None:
        """Every rank of `group` calls this: the first time, the thread's group is split off.

        group: None for torch.distributed's default one. TypeError for what is no all-reduce.
        """
        self._within = reduction_of(all_reduce)
        self.remembers_buckets = self._within.remembers_buckets
        self._group = chosen(group)
        self._thread = CommunicationThread.of(self._group)

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
        return self._thread.start(partial(self._within, x))
