"""ZeRO-2 adds to zero1.py: no rank keeps gradients of another rank's shard either.

    backward   w4 w3 |  w2 w1  | w0
    network          | reduce-scatter bucket 0 | bucket 1 | ...
    kept               G of my shard of bucket 0, 1, ...

A gradient moves into its bucket as soon as it is there; a full bucket is reduced while backward
goes on, and is freed: what stays is the shard. With one bucket on its way and one being filled,
gradients take two buckets and an n-th of the parameters, where zero1 needs room for all of them.
(Buckets are cut, and reduced, in the order opposite to that in which modules are made. Where they
are used in another order, full ones wait, and take their room, for those before them.)

The price comes with several microbatches to a step. zero1 adds gradients up on each rank and
reduces once; here nothing is left to add to but the shard, so every backward pass reduces.

Layout: as zero1, with one flat tensor for each bucket.
Wire: k microbatches: k + 1 times (n-1)/n of the parameters' bytes.
Paper: Rajbhandari et al., arXiv:1910.02054, section 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from labkit.collectives.backend import CollectiveBackend
from labkit.comm import Group
from labkit.data_parallel.background import CommunicationThread, OnThread
from labkit.data_parallel.bucketed import BUCKET_BYTES, cut
from labkit.data_parallel.replica import on_gradient, remove_with, require_plain_numbers
from labkit.memory import announce
from labkit.zero.flat import is_divided_before
from labkit.zero.optimizer_within import Member, takes_fragments
from labkit.zero.states import Shard
from labkit.zero.zero1 import Zero1Optimizer


class Zero2Optimizer(Zero1Optimizer):
    """A Zero1Optimizer whose gradients are reduced and freed during backward.

        optimizer = Zero2Optimizer(model.parameters(), torch.optim.AdamW, world, lr=3e-4)
        loss(model, share).backward()      every `.grad` is None again
        optimizer.step()

    After an exception in a backward pass call zero_grad, on all ranks; where all have reduced as
    many buckets, the next pass is right. `step` also raises RuntimeError for a gradient that
    was set by hand, and where there was no backward pass since the last one.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Any],
        group: Group | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        backend: CollectiveBackend | None = None,
        master_dtype: torch.dtype | None = None,
        masters_on: torch.device | str | None = None,
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        """bucket_bytes: see `make_buckets`; the other arguments are Zero1Optimizer's.

        TypeError also for an optimizer that must see whole parameters: in a bucket of few
        parameters some ranks would own all, and others nothing.
        """
        if not takes_fragments(optimizer_class):
            raise TypeError(
                f"{optimizer_class!r:.60} looks at whole parameters, and buckets are cut by "
                "elements; use Zero1Optimizer, or an optimizer such as torch.optim.AdamW"
            )
        self._bucket_bytes = bucket_bytes
        super().__init__(
            params,
            optimizer_class,
            group,
            backend=backend,
            master_dtype=master_dtype,
            masters_on=masters_on,
            find_unused_parameters=find_unused_parameters,
            **defaults,
        )

    def _cuts(self, members: list[Member]) -> list[list[Member]]:
        of = {str(member.number): member for member in members}
        buckets = cut({number: each.parameter for number, each in of.items()}, self._bucket_bytes)
        return [[of[number] for number in bucket] for bucket in buckets]

    def _receive_gradients(self) -> None:
        self._thread = CommunicationThread.of(self.group)
        self._buckets = [GradientBucket(shard) for shard in self.shards]
        self._pass, self._num_started = -1, 0
        handles = [
            on_gradient(parameter, self._arrived, bucket, index)
            for bucket in self._buckets
            for index, parameter in enumerate(bucket.shard.flat.parameters)
        ]
        remove_with(self, handles)

    def _arrived(self, bucket: GradientBucket, index: int, parameter: Tensor) -> None:
        self._before_arrival()
        current = torch._C._current_graph_task_id()
        if self._pass not in (-1, current):
            raise RuntimeError(
                "a backward pass within another one, or after one that failed: call "
                "checkpoint(..., use_reentrant=False), and zero_grad() after an exception"
            )
        if self._pass == -1:
            self._begin_pass(current)
        bucket.take(index, parameter)
        self._start_full()

    def _begin_pass(self, number: int) -> None:
        """Begin a backward pass, by the autograd engine's number, at its first gradient."""
        for bucket in self._buckets:
            bucket.drop()  # left from a failed pass
        self._pass, self._num_started = number, 0
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _start_full(self) -> None:
        """Start to reduce full buckets in their order, which is the same on all ranks."""
        while self._num_started < len(self._buckets) and self._buckets[self._num_started].is_full:
            self._start_next()

    def _start_next(self) -> None:
        if self._num_started:
            self._buckets[self._num_started - 1].finish()  # or buckets would pile up
        self._buckets[self._num_started].start(self._thread, self.backend)
        self._num_started += 1

    def _end_pass(self) -> None:
        """Called by the autograd engine when the backward pass has finished."""
        self._pass = -1
        if not self.find_unused_parameters:
            self.require_same_trained()
            waiting = self._buckets[self._num_started :]
            shards = [bucket.shard for bucket in waiting]
            self._require_none_missing(shards, [b.missing() for b in waiting])
        while self._num_started < len(self._buckets):
            self._start_next()
        self._buckets[-1].finish()

    def _sums(self) -> list[Tensor]:
        """Return the sums in the buckets: each backward pass has added to them."""
        by_hand = [
            name
            for shard in self.shards
            for name, parameter in zip(shard.names, shard.flat.parameters, strict=True)
            if parameter.grad is not None
        ]
        if by_hand:
            raise RuntimeError(
                f"{', '.join(by_hand)}: a gradient was set by hand, and here they are used as "
                "backward brings them; use Zero1Optimizer for that"
            )
        sums = [bucket.total for bucket in self._buckets]
        if any(total is None for total in sums):
            raise RuntimeError("no backward pass since the last step: there is no gradient to use")
        return [total for total in sums if total is not None]

    def _unused(self) -> list[set[int]]:
        missing = [set(range(len(b.shard.names))) - b.seen for b in self._buckets]
        return self._missing_everywhere(missing) if self.find_unused_parameters else missing

    def _forget_gradients(self) -> None:
        self._pass = -1
        for bucket in self._buckets:
            bucket.forget()
            for parameter in bucket.shard.flat.parameters:
                parameter.grad = None


class GradientBucket:
    """The gradients of one shard's parameters in one backward pass, and their sum over passes.

    .grad  -->  bucket (n*k,)  -- reduce-scatter -->  shard (k,), added to for every microbatch
    freed       freed when it is reduced              kept until the step
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.total: Tensor | None = None
        """(k,): this rank's shard of the sum over ranks and passes. None before the first."""
        self.seen: set[int] = set()
        """Parameters that had a gradient in some pass since the last step, by number."""
        self._ready: set[int] = set()
        self._flat: Tensor | None = None
        self._views: tuple[Tensor, ...] = ()
        self._reducing: OnThread[Tensor] | None = None

    def take(self, index: int, parameter: Tensor) -> None:
        """Move a gradient in, and free it."""
        gradient = parameter.grad
        require_plain_numbers(gradient, self.shard.names[index])
        if self._flat is None:
            self._allocate()
        if gradient is not None:
            self._views[index].copy_(gradient)
        parameter.grad = None
        self._ready.add(index)

    @property
    def is_full(self) -> bool:
        """Return whether every gradient is there."""
        return len(self._ready) == len(self.shard.names)

    def missing(self) -> set[int]:
        """Return the numbers of the parameters whose gradients are not there."""
        return set(range(len(self.shard.names))) - self._ready

    def start(self, thread: CommunicationThread, backend: CollectiveBackend) -> None:
        """Start to reduce it, with zeros for what is missing."""
        if self._flat is None:
            self._allocate()
        flat = self._flat
        assert flat is not None
        for index in self.missing():
            self._views[index].zero_()
        if is_divided_before(flat.dtype):
            flat.div_(self.shard.group.size)

        def reduce(group: Group) -> Tensor:
            with group.label(f"gradients of {self.shard.label}"):
                own: Tensor = backend.reduce_scatter(flat, group, in_place=True).wait()
                return own

        self._reducing = thread.start(reduce)

    def finish(self) -> None:
        """Wait for it, keep this rank's shard of the sum, and free the rest."""
        if self._reducing is None:
            return
        reduced = self._reducing.wait()
        if self.total is None:
            self.total = reduced.clone()
            announce(self.total, "gradients")
        else:
            self.total += reduced
        self.seen |= self._ready
        self.drop()

    def drop(self) -> None:
        """Free what this pass has brought."""
        self._flat, self._views, self._reducing = None, (), None
        self._ready = set()

    def forget(self) -> None:
        """Free everything, after a step."""
        self.drop()
        self.total, self.seen = None, set()

    def _allocate(self) -> None:
        self._flat = torch.zeros_like(self.shard.flat.weights)
        self._views = self.shard.flat.views(self._flat)
        announce(self._flat, "buffers")
