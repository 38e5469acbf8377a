"""BucketedDDP: as NaiveDDP, with a few large messages in the place of many small. The second rung.

    backward ......................... | all-reduce bucket 0 | bucket 1 | bucket 2 | step

A small message costs its latency, whatever is in it: 100 parameters cost 100 latencies, four
buckets cost four. Still nothing computes while they travel: see overlapped.py.

Layout: as NaiveDDP, and gradients are views into the buckets.
Wire: 2(n-1)/n of the gradients' bytes per rank, in one all-reduce per bucket.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.2.
"""

from torch import nn

from labkit.comm import Group
from labkit.data_parallel.buckets import BUCKET_BYTES, make_buckets
from labkit.data_parallel.naive import gradients_of
from labkit.data_parallel.reduction import (
    AllReduce,
    PerBucket,
    all_reduces_of,
    begin,
    held_by,
    library_all_reduce,
)
from labkit.data_parallel.replica import Replica, trained_of


class BucketedDDP(Replica):
    """A module whose gradients `reduce_gradients` averages over the ranks, bucket by bucket.

    Gradients are views into buckets, which the next step overwrites: `.clone()` what is to be kept.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce | PerBucket = library_all_reduce,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        broadcast_buffers: bool = True,
    ) -> None:
        """bucket_bytes: see `make_buckets`. See `Replica` for the other arguments."""
        # First, so that what is refused is refused before anything is sent.
        buckets = make_buckets(trained_of(module), bucket_bytes)
        all_reduces = all_reduces_of(all_reduce, buckets)
        super().__init__(module, group, broadcast_buffers=broadcast_buffers)
        self.buckets, self._all_reduces = held_by(all_reduce, buckets), all_reduces

    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        Wire: one all-reduce per bucket; the next begins while one is under way.
        Raises RuntimeError when a trained parameter has no gradient, and when parameters were
        added, frozen or unfrozen since the module was wrapped; before anything is sent.
        """
        self.require_as_wrapped()
        gradients_of(self)
        in_flight = []
        for bucket in self.buckets:
            for index in range(len(bucket.parameters)):
                bucket.take(index, 1 / self.group.size)
            with self.group.label(self.label_of(bucket.label)):
                in_flight.append(begin(self._all_reduces[bucket.number], bucket.flat, self.group))
        for each in in_flight:
            each.wait()
