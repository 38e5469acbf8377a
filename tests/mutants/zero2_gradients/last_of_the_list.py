"""Mutant: the last parameter of the list is taken for the last whose gradient comes.

outcome: "crashed"
diagnosis: "takes a gradient that has not come yet"
"""

import torch
from torch.nn.functional import pad


def zero2_gradients(buckets, loss_fn, microbatches, group):
    segments = {}
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
        if parameter is buckets[i][-1]:
            reduce(i)

    hooks = [parameter.register_post_accumulate_grad_hook(on_gradient) for parameter in number]
    for microbatch in microbatches:
        (loss_fn(microbatch) / len(microbatches)).backward()
    for hook in hooks:
        hook.remove()
    return [segments[i] for i in range(len(buckets))]
