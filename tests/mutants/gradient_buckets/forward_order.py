"""Mutant: from the first parameter to the last.

outcome: "wrong"
diagnosis: "buckets in forward order"
"""

import torch


def gradient_buckets(numels, itemsize, bucket_bytes):
    buckets, current, filled = [], [], 0
    for index in range(len(numels)):
        nbytes = numels[index] * itemsize
        if current and filled + nbytes > bucket_bytes:
            buckets.append(current)
            current, filled = [], 0
        current.append(index)
        filled += nbytes
    if current:
        buckets.append(current)
    return buckets


def reduce_buckets(gradients, bucket_bytes, group):
    numels = [gradient.numel() for gradient in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):
        flat = torch.cat([gradients[index].flatten() for index in bucket])
        group.all_reduce(flat, op="mean", out=flat)
        for index, part in zip(bucket, flat.split([numels[index] for index in bucket])):
            gradients[index].copy_(part.view_as(gradients[index]))
