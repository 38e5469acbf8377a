"""Mutant: gives the gradients other memory, and leaves what whoever holds theirs has.

outcome: "wrong"
diagnosis: "the means do not get into the gradients"
"""

import torch


def gradient_buckets(numels, itemsize, bucket_bytes):
    buckets, filled_bytes = [], 0
    for index in reversed(range(len(numels))):
        nbytes = numels[index] * itemsize
        if not buckets or filled_bytes + nbytes > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += nbytes
    return buckets


def reduce_buckets(gradients, bucket_bytes, group):
    numels = [gradient.numel() for gradient in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):
        flat = torch.cat([gradients[index].flatten() for index in bucket])
        group.all_reduce(flat, op="mean", out=flat)
        parts = flat.split([numels[index] for index in bucket])
        for index, part in zip(bucket, parts):
            gradients[index].data = part.view(gradients[index].shape)
