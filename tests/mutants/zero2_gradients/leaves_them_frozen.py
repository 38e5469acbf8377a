"""Mutant: requires_grad is switched off to get rid of gradients, and stays off.

outcome: "wrong"
diagnosis: "leaves the parameters frozen"
"""

import torch
from torch.nn.functional import pad


def zero2_gradients(buckets, loss_fn, microbatches, group):
    segments = {}
    arrived = [0] * len(buckets)
    number = {parameter: i for i, bucket in enumerate(buckets) for parameter in bucket}

    def reduce(i):
        flat = torch.cat([parameter.grad.flatten() for parameter in buckets[i]])
        for parameter in buckets[i]:
            parameter.grad = None
        flat = pad(flat, (0, -flat.numel() % group.size))
        segment = group.reduce_scatter(flat, op="mean")
        segments[i] = segments[i] + segment if i in segments else segment

    def on_gradient(parameter):
        i = number[parameter]
        arrived[i] += 1
        if arrived[i] % len(buckets[i]) == 0:
            reduce(i)

    hooks = [parameter.register_post_accumulate_grad_hook(on_gradient) for parameter in number]
    for microbatch in microbatches:
        (loss_fn(microbatch) / len(microbatches)).backward()
    for hook in hooks:
        hook.remove()
    for parameter in number:
        parameter.requires_grad_(False)
    return [segments[i] for i in range(len(buckets))]
