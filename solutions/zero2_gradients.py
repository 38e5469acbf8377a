"""Gradients of ZeRO-2: reduced and freed during backward.

An interviewer asks: "In ZeRO-1 every rank holds all gradients at the end of backward. How do you
avoid that? Write the backward passes of a step with four microbatches. What do you add up, and
where? And why does this send more than ZeRO-1 as soon as there are two microbatches?"

Write `zero2_gradients(buckets, loss_fn, microbatches, group)`. It runs the backward passes of one
step and returns this rank's shards of the mean gradient.

Contract
    buckets       a list of lists of parameters. Each parameter is in one bucket. All buckets have
                  the same size. On all ranks backward completes them in the order of the list;
                  within one, gradients arrive in any order. At first no parameter has a gradient
    loss_fn       loss_fn(microbatch) returns the mean loss over the examples of a microbatch, a
                  scalar on which you call backward(). It uses each parameter once
    microbatches  a list with this rank's microbatches, one or more. All ranks have the same number,
                  and all microbatches have the same size
    group         `group.rank`, `group.size`, and two collectives:
                  - `all_reduce(x)` returns the sum over the ranks
                  - `reduce_scatter(x)` cuts the sum into n equal blocks and returns block `rank`;
                    n must divide the size of x
                  Both take op="mean" for the mean instead of the sum
    returns       a list with one tensor (k,) per bucket, k = ceil(numel of the bucket / n). It is
                  computed like this: flatten and concatenate the bucket's gradients in the order of
                  the bucket, add zeros at the end up to n k numbers, cut the result into n shards
                  and take shard `rank`. The gradient is that of the mean loss over all microbatches
                  of all ranks
    afterwards    no parameter has a gradient, your hooks are removed, and parameters and
                  microbatches are as they were

n is group.size, and it need not divide the size of a bucket.

Budget, on every rank, for n >= 2
    memory  at any time at most the shards once, two buckets and two more shards. The two buckets
            are the gradients of one bucket and the flat tensor into which you copy them. Divide
            and add up shards in place or one by one. Activations are not counted
    sent    (n-1) k numbers per bucket and microbatch, which is one reduce_scatter on a ring. An
            all_reduce sends twice as much

Useful: parameter.register_post_accumulate_grad_hook(hook) calls hook(parameter) during backward, as
soon as parameter.grad is complete. The hook must return None. remove() on the handle that the
registration returns removes the hook.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from labkit.comm import Group


def zero2_gradients(
    buckets: Sequence[Sequence[nn.Parameter]],
    loss_fn: Callable[[Any], torch.Tensor],
    microbatches: Sequence[Any],
    group: Group,
) -> list[torch.Tensor]:
    """Return this rank's shard of each bucket's mean gradient.

    Sent, on a ring: (n-1)/n of the gradients' bytes per microbatch.
    """
    ### BEGIN SOLUTION
    shards: dict[int, torch.Tensor] = {}
    num_arrived = [0] * len(buckets)
    bucket_of = {parameter: i for i, bucket in enumerate(buckets) for parameter in bucket}

    def on_gradient(parameter: torch.Tensor) -> None:
        i = bucket_of[parameter]
        num_arrived[i] += 1
        if num_arrived[i] == len(buckets[i]):
            num_arrived[i] = 0  # the next microbatch counts from 0
            shard = group.reduce_scatter(_take_gradients(buckets[i], group.size), op="mean")
            # Gradients are freed, so earlier microbatches are in the shards only: add there.
            shards[i] = shards[i].add_(shard) if i in shards else shard

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in bucket_of]
    try:
        for microbatch in microbatches:
            (loss_fn(microbatch) / len(microbatches)).backward()
    finally:
        for hook in hooks:
            hook.remove()
    return [shards[i] for i in range(len(buckets))]


def _take_gradients(bucket: Sequence[nn.Parameter], num_ranks: int) -> torch.Tensor:
    """Move a bucket's gradients into one flat tensor whose size `num_ranks` divides."""
    flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
    for parameter in bucket:
        parameter.grad = None
    return pad(flat, (0, -flat.numel() % num_ranks))
    ### END SOLUTION
