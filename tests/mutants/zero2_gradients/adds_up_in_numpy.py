"""Mutant: microbatches are added up in numpy arrays, and reduced once, as in ZeRO-1.

outcome: "over budget"
diagnosis: "adds up microbatches before it reduces"
"""

import numpy as np
import torch
from torch.nn.functional import pad


def zero2_gradients(buckets, loss_fn, microbatches, group):
    sums = {}
    arrived = [0] * len(buckets)
    number = {parameter: i for i, bucket in enumerate(buckets) for parameter in bucket}

    def add(i):
        flat = np.concatenate([parameter.grad.numpy().ravel() for parameter in buckets[i]])
        for parameter in buckets[i]:
            parameter.grad = None
        sums[i] = sums[i] + flat if i in sums else flat

    def reduced(i):
        flat = torch.from_numpy(sums[i])
        return group.reduce_scatter(pad(flat, (0, -flat.numel() % group.size)), op="mean")

    def on_gradient(parameter):
        i = number[parameter]
        arrived[i] += 1
        if arrived[i] % len(buckets[i]) == 0:
            add(i)

    hooks = [parameter.register_post_accumulate_grad_hook(on_gradient) for parameter in number]
    for microbatch in microbatches:
        (loss_fn(microbatch) / len(microbatches)).backward()
    for hook in hooks:
        hook.remove()
    return [reduced(i) for i in range(len(buckets))]
