"""Error feedback: what compression leaves out now is sent later.

    step t, on each rank    c = g + e          the gradient, and what is still owed: the residual
                            send part of c
                            e = c - what was sent

Summed over the steps, all that is ever applied is the sum of all gradients, less what the ranks
still owe at the end. So small entries of a gradient arrive late and do arrive; without feedback
they would never.
The theory is one of SGD. Adam divides by a running size of gradients that it now sees in lumps;
1-bit Adam (arXiv:2102.02888) first lets that settle without compression. What is owed has the scale
of the loss that it came from: under dynamic loss scaling it is paid back at another one.
Papers: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al.,
"Error feedback fixes SignSGD", arXiv:1901.09847.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from labkit.collectives.wire import Done, Handle
from labkit.comm import Group
from labkit.data_parallel.bucketed import Bucket
from labkit.data_parallel.reduction import Reduction


class Compressor(Reduction):
    """A way to make gradients small, for any number of buckets.

    It blocks: the all-gather of one bucket is over before backward goes on. In the background,
    DDP(module, world, InBackground(TopK(0.01), world)), backward goes on meanwhile.
    """

    remembers_buckets = True

    def __init__(self, *, error_feedback: bool = True) -> None:
        """error_feedback: False throws away what is left out, to see what that does."""
        self.error_feedback = error_feedback

    def of(self, bucket: Bucket) -> "Exchange":
        """The all-reduce of one bucket, with a memory of its own for what is owed."""
        return Exchange(self, bucket, torch.zeros_like(bucket.flat))

    def start(self, x: Tensor, group: Group) -> Handle:
        """TypeError: see `of`."""
        raise TypeError(
            f"{type(self).__name__} works on buckets, and there are none here; wrap the module in "
            "BucketedDDP or DDP"
        )

    @abstractmethod
    def exchange(self, x: Tensor, bucket: Bucket, group: Group) -> tuple[Tensor, Tensor]:
        """Send a small form of `x`, (numel,): the sum of all ranks' forms, and this rank's own.

        The second is what x counts for in the sum: the difference is owed.
        """


class Exchange(Reduction):
    """The all-reduce of one bucket. `owed`: what this rank has left out so far, (numel,)."""

    def __init__(self, compressor: Compressor, bucket: Bucket, owed: Tensor) -> None:
        """Made by `Compressor.of`."""
        self._compressor, self._bucket, self.owed = compressor, bucket, owed

    def start(self, x: Tensor, group: Group) -> Handle:
        """Replace `x` by something near its sum over the ranks, the same on every rank."""
        x.add_(self.owed)
        total, own = self._compressor.exchange(x, self._bucket, group)
        if self._compressor.error_feedback:
            # An overflow is everyone's, as the sum is: the step will be skipped, and what was owed
            # before it still is. Chosen by `where`: on a GPU an `if` would make the host wait.
            is_sum = torch.isfinite(total).all()
            self.owed = torch.where(is_sum, x - own, self.owed)
        return Done(x.copy_(total))
