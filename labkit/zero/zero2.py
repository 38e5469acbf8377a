"""ZeRO-2: gradients are sharded too. It adds to zero1.py a reduce-scatter during backward.

    backward   w4 w3 |  w2 w1  | w0
    network          | reduce-scatter bucket 0 | bucket 1 | ...
    kept               this rank's shard of bucket 0, 1, ...

A gradient moves into its bucket as soon as it is complete. A full bucket is reduce-scattered while
backward goes on, and freed: only this rank's shard stays. One bucket is reduced and one is filled,
so gradients take two buckets and an n-th of all gradients, while zero1 keeps all of them. (Buckets
are cut and reduced in the reverse order of the modules' construction. If modules are used in
another order, full buckets stay in memory until those before them are full.)

The price: with several microbatches per step zero1 sums gradients on each rank and reduces once.
Here a rank keeps only its shard of the sum, so every backward pass reduces.

Layout: as in zero1, with one flat tensor for each bucket.
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
from labkit.data_parallel.background import BackgroundHandle, CommunicationThread
from labkit.data_parallel.bucketed import BUCKET_BYTES, assign_to_buckets
from labkit.data_parallel.replica import on_gradient, remove_with, require_plain_numbers
from labkit.memory import tag_tensors
from labkit.zero.flat import is_divided_before
from labkit.zero.local_optimizer import Member, takes_fragments
from labkit.zero.states import Shard
from labkit.zero.zero1 import Zero1Optimizer


class Zero2Optimizer(Zero1Optimizer):
    """A Zero1Optimizer whose gradients are reduced and freed during backward.

        optimizer = Zero2Optimizer(model.parameters(), torch.optim.AdamW, world, lr=3e-4)
        loss(model, share).backward()      every `.grad` is None again
        optimizer.step()

    After an exception in a backward pass call zero_grad on all ranks. The next pass is right if all
    ranks had reduced the same number of buckets. `step` also raises RuntimeError for a gradient
    that was set by hand, and if there was no backward pass since the last step.
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

        TypeError also for an optimizer that needs whole parameters: in a bucket of few parameters
        some ranks would own all, and others none.
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
        buckets = assign_to_buckets(
            {number: each.parameter for number, each in of.items()}, self._bucket_bytes
        )
        return [[of[number] for number in bucket] for bucket in buckets]

    def _receive_gradients(self) -> None:
        self._thread = CommunicationThread.for_group(self.group)
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
                "a backward pass inside another one, or after a failed one: call "
                "checkpoint(..., use_reentrant=False), and call zero_grad() after an exception"
            )
        if self._pass == -1:
            self._begin_pass(current)
        bucket.take(index, parameter)
        self._start_full()

    def _begin_pass(self, number: int) -> None:
        """Begin a backward pass at its first gradient. number: the autograd engine's ID of it."""
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
            self._buckets[self._num_started - 1].finish()  # at most one is reduced at a time
        self._buckets[self._num_started].start(self._thread, self.backend)
        self._num_started += 1

    def _end_pass(self) -> None:
        """Reduce the last buckets. The autograd engine calls it when backward has finished."""
        self._pass = -1
        if not self.find_unused_parameters:
            self.require_same_trainable()
            waiting = self._buckets[self._num_started :]
            shards = [bucket.shard for bucket in waiting]
            self._require_none_missing(shards, [b.missing() for b in waiting])
        while self._num_started < len(self._buckets):
            self._start_next()
        self._buckets[-1].finish()

    def _sums(self) -> list[Tensor]:
        """Return the sums over ranks and backward passes, by bucket."""
        by_hand = [
            name
            for shard in self.shards
            for name, parameter in zip(shard.names, shard.flat.parameters, strict=True)
            if parameter.grad is not None
        ]
        if by_hand:
            raise RuntimeError(
                f"{', '.join(by_hand)}: a gradient was set by hand, but this optimizer takes "
                "gradients from backward passes only; use Zero1Optimizer instead"
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
    """One bucket's gradients in a backward pass, and this rank's shard of their sum over passes.

    .grad  -->  bucket (n*k,)  -- reduce-scatter -->  shard (k,), a sum over the microbatches
    freed       freed once reduced                    kept until the step
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
        self._reducing: BackgroundHandle[Tensor] | None = None

    def take(self, index: int, parameter: Tensor) -> None:
        """Move a parameter's gradient into the bucket."""
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
        """Return whether every gradient has arrived."""
        return len(self._ready) == len(self.shard.names)

    def missing(self) -> set[int]:
        """Return the numbers of the parameters whose gradients have not arrived."""
        return set(range(len(self.shard.names))) - self._ready

    def start(self, thread: CommunicationThread, backend: CollectiveBackend) -> None:
        """Start to reduce the bucket, with zeros for missing gradients."""
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
        """Wait for the reduction, keep this rank's shard of the sum, and free the bucket."""
        if self._reducing is None:
            return
        reduced = self._reducing.wait()
        if self.total is None:
            self.total = reduced.clone()
            tag_tensors(self.total, "gradients")
        else:
            self.total += reduced
        self.seen |= self._ready
        self.drop()

    def drop(self) -> None:
        """Free the gradients of this pass."""
        self._flat, self._views, self._reducing = None, (), None
        self._ready = set()

    def forget(self) -> None:
        """Free everything, after a step."""
        self.drop()
        self.total, self.seen = None, set()

    def _allocate(self) -> None:
        self._flat = torch.zeros_like(self.shard.flat.weights)
        self._views = self.shard.flat.views(self._flat)
        tag_tensors(self._flat, "buffers")
