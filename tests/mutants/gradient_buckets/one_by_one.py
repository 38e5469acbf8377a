"""Mutant: buckets decide the order only.

outcome: "over budget"
diagnosis: "an all-reduce for every gradient"
"""

import torch


def gradient_buckets(numels, itemsize, bucket_bytes):
    buckets, current, filled = [], [], 0
    for index in reversed(range(len(numels))):
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
        for index in bucket:
            gradients[index].copy_(group.all_reduce(gradients[index], op="mean"))
