"""Gradients in buckets: few large all-reduces instead of many small ones.

An interviewer asks: "A model has 500 gradients, most of them small, and each all-reduce costs its
latency. Put the gradients into buckets. In which order? What if a gradient is larger than a bucket,
and what about the last bucket? Then reduce the buckets."

Write two functions.

`gradient_buckets(numels, itemsize, bucket_bytes)` decides which gradients share a bucket
    numels        the number of elements of each gradient, at least 1, in the order of
                  module.parameters(). The list may be empty
    itemsize      bytes per element, the same for all gradients
    bucket_bytes  the most bytes that a bucket holds
    returns       a list of buckets, in the order in which they are reduced. A bucket is a list of
                  indices into numels, in the order in which the gradients were put in.
                  Put in the gradients from the last to the first, as backward finishes them. A
                  gradient goes into the open bucket if it fits. If not, close that bucket, and open
                  the next one with the gradient. Nothing goes into a closed bucket. A gradient
                  larger than bucket_bytes has a bucket to itself. No bucket is empty

`reduce_buckets(gradients, bucket_bytes, group)` averages gradients over the ranks
    gradients     a list of at least one tensor, in the order of module.parameters(), all of one
                  dtype, of any shape, contiguous or not. Afterwards each tensor holds its mean over
                  the ranks, in its own memory
    group         `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum.
                  With `out=tensor` the sum is left in `tensor`; with `op="mean"` it is the mean
    returns       nothing

Budget of reduce_buckets, on every rank
    collectives   one all-reduce per bucket of gradient_buckets, in the order of the buckets
    payload       the bytes of the bucket's gradients, without padding
"""

from collections.abc import Sequence

import torch

from labkit.comm import Group


def gradient_buckets(numels: Sequence[int], itemsize: int, bucket_bytes: int) -> list[list[int]]:
    """Return the indices of the gradients in each bucket, the last gradient first."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def reduce_buckets(gradients: Sequence[torch.Tensor], bucket_bytes: int, group: Group) -> None:
    """Replace each gradient by its mean over the ranks, in its own memory.

    Wire: each rank sends 2(n-1)/n of the gradients' bytes, in one all-reduce per bucket.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
