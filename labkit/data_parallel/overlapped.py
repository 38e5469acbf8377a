"""OverlappedDDP: a bucket travels while backward computes the next. The third rung.

    backward   w4 w3 | w2 w1 w0 |
    network          | bucket 0 | bucket 1 |
                                           ^ backward() returns

A hook on each parameter fires when its gradient is there. The last one of a bucket begins the
bucket's all-reduce, and backward goes on. When it is through, the autograd engine calls back, and
there the rank waits for what is still under way: `backward()` returns with means.

Buckets begin in order, whichever is full first: collectives are matched by their order, and ranks
may finish their gradients in different orders.

After the first pass the buckets are cut anew, in the order in which gradients arrived: arrival.py.

Layout, wire: as BucketedDDP, and once a broadcast of 8 bytes per trained parameter.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.3.
"""

import enum
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from labkit.comm import Group
from labkit.data_parallel.arrival import agreed_order, cut_by
from labkit.data_parallel.buckets import BUCKET_BYTES, make_buckets, places_of
from labkit.data_parallel.hooks import hook
from labkit.data_parallel.no_sync import Accumulating
from labkit.data_parallel.reduction import (
    AllReduce,
    InFlight,
    PerBucket,
    all_reduces_of,
    begin,
    held_by,
    library_all_reduce,
    needs_buckets,
)
from labkit.data_parallel.replica import trained_of

_NOT_REENTRANT = (
    "a reentrant checkpoint is a backward pass of its own; call checkpoint(..., "
    "use_reentrant=False)"
)


class _Phase(enum.Enum):
    IDLE = enum.auto()
    BACKWARD = enum.auto()


class _Cut(enum.Enum):
    """By what buckets are cut."""

    AS_REGISTERED = enum.auto()
    """Until the end of the first pass that reduces; for good where parameters may be left out, and
    with a compressor, which remembers what it owes by bucket."""
    AS_ARRIVED = enum.auto()


class OverlappedDDP(Accumulating):
    """A module whose `backward()` leaves the mean of each gradient over the ranks.

        model = DDP(module, world)
        loss(model, share).backward()
        optimizer.step()

    Gradients are views into buckets, which the next pass overwrites: `.clone()` what is to be kept.
    A gradient that is left in place, without zero_grad, is added to and averaged again: the sum of
    both means, as with torch's own. An exception in a backward pass leaves gradients that are no
    means: call zero_grad. Then the next pass is right, if all ranks had the exception.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce | PerBucket = library_all_reduce,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ) -> None:
        """See `Replica` and `make_buckets` for the other arguments.

        find_unused_parameters: whether a backward pass may leave parameters out, other ones on
        other ranks. Costs one more small all-reduce per pass, and from the first bucket with one
        that is left out, buckets wait for the end of the pass; nor are they cut anew after the
        first one.
        """
        # First, so that what is refused is refused before anything is sent.
        buckets = make_buckets(trained_of(module), bucket_bytes)
        all_reduces = all_reduces_of(all_reduce, buckets)
        super().__init__(module, group, broadcast_buffers=broadcast_buffers)
        self.find_unused_parameters = find_unused_parameters
        self.buckets, self._all_reduces = held_by(all_reduce, buckets), all_reduces
        self._all_reduce, self._bucket_bytes = all_reduce, bucket_bytes
        self._cut = _Cut.AS_REGISTERED
        self._phase = _Phase.IDLE
        self._pass = -1
        self._in_flight: list[InFlight] = []
        self._num_begun = 0
        self._ready: list[set[int]] = []
        self._arrived: list[str] = []
        self._place_of = places_of(self.buckets)
        hook(self, self._on_gradient)

    def reduce_gradients(self) -> None:
        """Nothing: `backward()` has done it."""

    def _on_gradient(self, name: str, parameter: torch.Tensor) -> None:
        if not self.is_syncing:
            return
        current = torch._C._current_graph_task_id()
        if self._phase is _Phase.IDLE or self._pass != current:
            self._begin_pass(current)
        if parameter.grad is None:
            raise RuntimeError(
                f"another hook has taken away the gradient of {name} before it was averaged; use "
                "gradients after backward() has returned"
            )
        self._arrived.append(name)
        number, index = self._place_of[name]
        self.buckets[number].take(index, 1 / self.group.size)
        self._ready[number].add(index)
        self._begin_full_buckets()

    def _begin_pass(self, number: int) -> None:
        """The first gradient of a backward pass, by the autograd engine's number for it."""
        self._abandon()
        self.require_as_wrapped(may_be_frozen=True)
        self._phase, self._pass = _Phase.BACKWARD, number
        self._ready = [set() for _ in self.buckets]
        self._arrived = []
        self._num_begun = 0
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end_pass, number))

    def _begin_full_buckets(self) -> None:
        while self._num_begun < len(self.buckets):
            bucket = self.buckets[self._num_begun]
            if len(self._ready[bucket.number]) < len(bucket.parameters):
                break
            self._num_begun += 1
            with self.group.label(self.label_of(bucket.label)):
                self._in_flight.append(
                    begin(self._all_reduces[bucket.number], bucket.flat, self.group)
                )

    def _end_pass(self, number: int) -> None:
        """Called by the autograd engine when the backward pass is through."""
        if number != self._pass:
            raise RuntimeError(f"a backward pass has run within this one: {_NOT_REENTRANT}")
        left_out = {
            name: (number, index)
            for name, (number, index) in self._place_of.items()
            if index not in self._ready[number]
        }
        if left_out and not self.find_unused_parameters:
            self._abandon()
            raise RuntimeError(
                f"rank {self.group.rank}: this backward pass left out {', '.join(left_out)}. The "
                "other ranks wait for them. Use them in every loss, freeze them everywhere with "
                "requires_grad_(False), or pass find_unused_parameters=True. (Where they are used: "
                f"{_NOT_REENTRANT}.)"
            )
        try:
            self._end_with(left_out)
        finally:
            self._abandon()

    def _end_with(self, left_out: dict[str, tuple[int, int]]) -> None:
        has_gradient = [p.grad is not None for b in self.buckets for p in b.parameters]
        for number, index in left_out.values():
            self.buckets[number].take(index, 1 / self.group.size)
            self._ready[number].add(index)
        self._begin_full_buckets()
        unused = self._unused_everywhere(has_gradient) if self.find_unused_parameters else []
        while self._in_flight:
            self._in_flight.pop(0).wait()
        for parameter in unused:
            parameter.grad = None  # an optimizer leaves it alone, weight decay and all
        if self._cut is _Cut.AS_REGISTERED:
            self._cut_as_arrived()
        self.has_synced = True

    def _cut_as_arrived(self) -> None:
        """At the end of the first pass, on all ranks."""
        if self.find_unused_parameters or needs_buckets(self._all_reduce):
            return
        order = agreed_order(self._arrived, self.buckets, self.group)
        buckets = cut_by(order, self.buckets, self._bucket_bytes)
        if buckets is not self.buckets:
            self.buckets = held_by(self._all_reduce, buckets)
        self._all_reduces = all_reduces_of(self._all_reduce, self.buckets)
        self._place_of = places_of(self.buckets)
        self._cut = _Cut.AS_ARRIVED

    def _unused_everywhere(self, has_gradient: list[bool]) -> list[nn.Parameter]:
        """Asked after the buckets: ranks that use everything have begun those long ago."""
        mask = torch.tensor(has_gradient, dtype=torch.uint8, device=self.group.device)
        with self.group.label("which parameters have a gradient"):
            anywhere = self.group.all_reduce(mask, "max").tolist()
        parameters = [p for b in self.buckets for p in b.parameters]
        return [p for p, is_used in zip(parameters, anywhere, strict=True) if not is_used]

    def _abandon(self) -> None:
        """Come to rest: also after an error, whose all-reduces the other ranks have begun too."""
        for each in self._in_flight:
            with suppress(Exception):
                each.wait()
        self._in_flight = []
        self._phase = _Phase.IDLE


DDP = OverlappedDDP
