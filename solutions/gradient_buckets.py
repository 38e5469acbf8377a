"""Gradients in buckets: few large messages in the place of many small ones.

An interviewer asks: "A model has 500 gradients, most of them small, and an all-reduce of each costs
its latency. Put them into buckets. In which order, what if one is larger than a bucket, and what is
left over at the end? Then reduce them."

Write two functions.

`gradient_buckets(numels, itemsize, bucket_bytes)`: which gradients share a bucket
    numels        numbers in each gradient, at least 1, in the order of module.parameters(); there
                  may be none
    itemsize      bytes per number, the same for all
    bucket_bytes  what a bucket holds, at most
    returns       a list of buckets in the order in which they are reduced, each a list of indices
                  into numels. Gradients go in from the last to the first, as backward finishes
                  them. One that does not fit into the open bucket closes it and begins the next;
                  closed buckets stay closed. One that is larger than bucket_bytes has a bucket to
                  itself. No bucket is empty

`reduce_buckets(gradients, bucket_bytes, group)`: average gradients over the ranks by buckets
    gradients     a list of at least one tensor, in the order of module.parameters(), all of one
                  dtype; of any shape and memory layout. Afterwards each holds its mean over the
                  ranks, in its own memory
    group         `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum;
                  with `out=tensor` it is left there, with `op="mean"` it is the mean
    returns       nothing

Budget of reduce_buckets, on every rank
    collectives   one all-reduce per bucket, in the order of the buckets
    payload       the bytes of the gradients in the bucket, and nothing else
"""

from collections.abc import Sequence

import torch

from labkit.comm import Group


def gradient_buckets(numels: Sequence[int], itemsize: int, bucket_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, the last gradient first."""
    ### BEGIN SOLUTION
    buckets: list[list[int]] = []
    filled_bytes = 0
    for index in reversed(range(len(numels))):
        nbytes = numels[index] * itemsize
        if not buckets or filled_bytes + nbytes > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += nbytes
    return buckets
    ### END SOLUTION


def reduce_buckets(gradients: Sequence[torch.Tensor], bucket_bytes: int, group: Group) -> None:
    """Replace each gradient by its mean over the ranks, in its own memory.

    Wire: 2(n-1)/n of the gradients' bytes per rank, in one all-reduce per bucket.
    """
    ### BEGIN SOLUTION
    numels = [gradient.numel() for gradient in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):
        flat = torch.cat([gradients[index].flatten() for index in bucket])
        group.all_reduce(flat, op="mean", out=flat)
        parts = flat.split([numels[index] for index in bucket])
        for index, part in zip(bucket, parts, strict=True):
            gradients[index].copy_(part.view_as(gradients[index]))
    ### END SOLUTION
