"""Gradients of ZeRO-2: reduced and freed while backward goes on.

An interviewer asks: "In ZeRO-1 every rank still holds all gradients for a moment. How do you get
rid of them? Write the backward passes of a step with four microbatches. What do you add up, and
where? And why does this send more than ZeRO-1, as soon as there is more than one microbatch?"

Write `zero2_gradients(buckets, loss_fn, microbatches, group)`: run the backward passes of one step;
no rank keeps more of the mean gradient than its segments.

Contract
    buckets       a list of lists of parameters, each parameter in one bucket; backward finishes the
                  buckets in this order, on all ranks. No parameter has a gradient yet
    loss_fn       loss_fn(microbatch) is the mean loss over the examples of a microbatch, a number
                  to call backward() on; each parameter is used in it, once
    microbatches  this rank's, at least one; all ranks have equally many, of equal size
    group         `group.rank`, `group.size`, and two collectives: `all_reduce(x)`, and
                  `reduce_scatter(x)`, which gives rank r the r-th of n equal blocks of the sum; n
                  must divide the size of x. Both take op="mean"
    returns       a list with one tensor (k,) for each bucket, k = ceil(numel / n): rank r's is the
                  r-th of n segments of the bucket's gradients, flat, side by side in the order of
                  the bucket, with zeros at the end; of the mean over all microbatches of all ranks.
                  Afterwards no parameter has a gradient, and none a hook that it had not before

Budget, on every rank of two or more
    memory  beside the segments, at any time two buckets: the gradients of one, and the tensor in
            which they travel. (Only the bytes of activations come on top)
    sent    (n-1) k numbers for each bucket and microbatch, as a reduce_scatter on a ring sends; an
            all_reduce sends twice as much

Of use: parameter.register_post_accumulate_grad_hook(hook) calls hook(parameter) in backward, as
soon as parameter.grad is complete, and returns a handle with remove(). A hook must return None.
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
    """This rank's segment of each bucket's mean gradient.

    Wire, on a ring: (n-1)/n of the gradients' bytes, for every microbatch.
    """
    ### BEGIN SOLUTION
    segments: dict[int, torch.Tensor] = {}
    arrived = [0] * len(buckets)
    number = {parameter: i for i, bucket in enumerate(buckets) for parameter in bucket}

    def on_gradient(parameter: torch.Tensor) -> None:
        i = number[parameter]
        arrived[i] += 1
        if arrived[i] % len(buckets[i]) == 0:  # once in each microbatch
            segment = group.reduce_scatter(_taken(buckets[i], group.size), op="mean")
            # What is added up is the segment: nothing else of earlier microbatches is left.
            segments[i] = segments[i] + segment if i in segments else segment

    hooks = [parameter.register_post_accumulate_grad_hook(on_gradient) for parameter in number]
    try:
        for microbatch in microbatches:
            (loss_fn(microbatch) / len(microbatches)).backward()
    finally:
        for hook in hooks:
            hook.remove()
    return [segments[i] for i in range(len(buckets))]


def _taken(bucket: Sequence[nn.Parameter], num_ranks: int) -> torch.Tensor:
    """The gradients as one flat tensor that `num_ranks` divides; the parameters have none then."""
    flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
    for parameter in bucket:
        parameter.grad = None
    return pad(flat, (0, -flat.numel() % num_ranks))
    ### END SOLUTION
