"""OverlappedDDP: a bucket is reduced while backward computes the next. The fourth rung.

    backward   w4 w3 | w2 w1 w0 |
    network          | bucket 0 | bucket 1 |
                                           ^ backward() returns

A hook on each parameter fires when its gradient is finished. The last gradient of a bucket starts
the bucket's all-reduce, and backward goes on. At the end of backward, a callback of the autograd
engine waits for the all-reduces in flight, so `backward()` returns with the means.

Buckets start in order, not when they are full: ranks match collectives by their order, and may
finish their gradients in different orders.

Layout, wire: as BucketedDDP.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.3.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives.backend import Handle
from labkit.data_parallel.bucketed import Bucket, BucketedDDP
from labkit.data_parallel.replica import average_in_backward, require_as_wrapped

_NO_PASS = -1
_NOT_REENTRANT = (
    "a reentrant checkpoint runs a backward pass of its own; call checkpoint(..., "
    "use_reentrant=False)"
)


class OverlappedDDP(BucketedDDP):
    """A module whose `backward()` leaves the mean of each gradient over the ranks.

        model = OverlappedDDP(module, world)
        loss(model, share).backward()
        optimizer.step()

    Every backward pass must use every trained parameter, and reduces all gradients; DDP (ddp.py)
    lifts both rules. Without zero_grad the next pass adds to the mean and averages the result: the
    sum of both means, as in torch. After an exception in a backward pass some gradients may not be
    averaged: call zero_grad. The next pass is right if all ranks had the exception.
    """

    def __init__(self, module: nn.Module, *args: Any, **options: Any) -> None:
        """The arguments are BucketedDDP's."""
        super().__init__(module, *args, **options)
        self._may_leave_out = False  # True if parameters may be frozen later or left out of a loss
        self._pass = _NO_PASS  # the autograd engine's ID of the current backward pass
        self._place_of = bucket_of_parameter(self.buckets)
        self._arrived: list[str] = []
        self._num_missing: list[int] = []  # the gradients that have not arrived, by bucket
        self._in_flight: list[Handle] = []
        self._num_started = 0
        average_in_backward(self, module, self._on_gradient)

    def reduce_gradients(self) -> None:
        """Do nothing: `backward()` has reduced the gradients."""

    def _on_gradient(self, parameter: Tensor) -> None:
        """Move a finished gradient into its bucket, and start the buckets that are full."""
        current = torch._C._current_graph_task_id()
        if self._pass != current:
            self._begin_pass(current)
        bucket, index = self._place_of[parameter]
        if parameter.grad is None:
            raise RuntimeError(
                f"another hook has removed the gradient of {bucket.names[index]} before it was "
                "averaged; use gradients after backward() has returned"
            )
        self._take(bucket, index)
        self._start_full_buckets()

    def _begin_pass(self, number: int) -> None:
        """Begin a backward pass at its first gradient."""
        self._stop()
        require_as_wrapped(self.module, self._as_wrapped, may_be_frozen=self._may_leave_out)
        self._pass, self._num_started, self._arrived = number, 0, []
        self._num_missing = [len(bucket.parameters) for bucket in self.buckets]
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end_pass, number))

    def _take(self, bucket: Bucket, index: int) -> None:
        bucket.take(index, 1 / self.group.size)
        self._arrived.append(bucket.names[index])
        self._num_missing[bucket.number] -= 1

    def _start_full_buckets(self) -> None:
        for bucket in self.buckets[self._num_started :]:
            if self._num_missing[bucket.number]:
                break
            self._in_flight.append(self._start(bucket))
            self._num_started += 1

    def _end_pass(self, number: int) -> None:
        """Finish the backward pass. The autograd engine calls this at its end."""
        if number != self._pass:
            raise RuntimeError(f"a backward pass has run within this one: {_NOT_REENTRANT}")
        try:
            self._finish()
        finally:
            self._stop()

    def _finish(self) -> None:
        """Wait for all buckets. RuntimeError that names parameters without a gradient."""
        arrived = set(self._arrived)
        names = [name for bucket in self.buckets for name in bucket.names]
        if left_out := [name for name in names if name not in arrived]:
            raise RuntimeError(
                f"rank {self.group.rank}: this backward pass left out {', '.join(left_out)}. The "
                "other ranks wait for these gradients. Use each parameter in every loss, freeze it "
                "with requires_grad_(False) on every rank before the module is wrapped, or wrap "
                "the module in DDP(find_unused_parameters=True). (If the loss does use them: "
                f"{_NOT_REENTRANT}.)"
            )
        while self._in_flight:
            self._in_flight.pop(0).wait()

    def _stop(self) -> None:
        """End a pass. After an error, wait for buckets in flight: other ranks have started them."""
        for handle in self._in_flight:
            with suppress(Exception):
                handle.wait()
        self._in_flight = []
        self._pass = _NO_PASS


def bucket_of_parameter(buckets: Sequence[Bucket]) -> dict[Tensor, tuple[Bucket, int]]:
    """Return each parameter's bucket, and its index in the bucket."""
    return {
        parameter: (bucket, index)
        for bucket in buckets
        for index, parameter in enumerate(bucket.parameters)
    }
