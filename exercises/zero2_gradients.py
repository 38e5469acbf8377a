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
    raise NotImplementedError("not attempted yet: your code replaces this line")
