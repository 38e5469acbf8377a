"""ZeRO-2: as zero1, and no rank keeps gradients of another's share either.

    backward   w4 w3 |  w2 w1  | w0
    network          | reduce-scatter bucket 0 | bucket 1 | ...
    kept               G of my segment of bucket 0, 1, ...

A gradient moves into its bucket as soon as it is there; a full bucket is reduced while backward
goes on, and is freed: what stays is the segment. With one bucket on its way and one being filled,
gradients take two buckets and an n-th of the parameters, where zero1 needs room for all of them.
(Buckets are cut, and reduced, in the order opposite to that in which modules are made. Where they
are used in another order, full ones wait, and take their room, for those before them.)

The price comes with several microbatches to a step. zero1 adds gradients up on each rank and
reduces once; here nothing is left to add to but the segment, so every backward pass reduces.

Layout: as zero1, with one flat tensor for each bucket.
Wire: k microbatches: k + 1 times (n-1)/n of the parameters' bytes.
Paper: Rajbhandari et al., arXiv:1910.02054, section 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from labkit.collectives.wire import Wire
from labkit.comm import Group
from labkit.data_parallel.bucketed import BUCKET_BYTES, cut
from labkit.data_parallel.communication_thread import CommunicationThread
from labkit.data_parallel.hooks import on_gradient, remove_with
from labkit.zero.groups import Member
from labkit.zero.inner import takes_fragments
from labkit.zero.left_out import missing_everywhere, require_none_missing
from labkit.zero.staging import Staging
from labkit.zero.zero1 import ShardedOptimizer


class ShardedGradients(ShardedOptimizer):
    """zero1's ShardedOptimizer, whose gradients are reduced and freed during backward.

        optimizer = ShardedGradients(model.parameters(), torch.optim.AdamW, world, lr=3e-4)
        loss(model, share).backward()      every `.grad` is None again
        optimizer.step()

    After an exception in a backward pass call zero_grad, on all ranks; where all have reduced as
    many buckets, the next pass is right. `step` raises RuntimeError, besides, for a gradient that
    was set by hand, and where there was no backward pass since the last one.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Any],
        group: Group | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        wire: Wire | None = None,
        master_dtype: torch.dtype | None = None,
        masters_on: torch.device | str | None = None,
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        """bucket_bytes: see `make_buckets`; the other arguments are ShardedOptimizer's.

        TypeError, besides, for an optimizer that must see whole parameters: in a bucket of few
        parameters some ranks would own all, and others nothing.
        """
        if not takes_fragments(optimizer_class):
            raise TypeError(
                f"{optimizer_class!r:.60} looks at whole parameters, and buckets are cut by "
                "elements; use ShardedOptimizer, or an optimizer such as torch.optim.AdamW"
            )
        self._bucket_bytes = bucket_bytes
        super().__init__(
            params,
            optimizer_class,
            group,
            wire=wire,
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
        self._stagings = [Staging(shard) for shard in self.shards]
        self._pass, self._num_begun = -1, 0
        handles = [
            on_gradient(parameter, self._arrived, staging, index)
            for staging in self._stagings
            for index, parameter in enumerate(staging.shard.flat.parameters)
        ]
        remove_with(self, handles)

    def _arrived(self, staging: Staging, index: int, parameter: Tensor) -> None:
        self._before_arrival()
        current = torch._C._current_graph_task_id()
        if self._pass not in (-1, current):
            raise RuntimeError(
                "a backward pass within another one, or after one that failed: call "
                "checkpoint(..., use_reentrant=False), and zero_grad() after an exception"
            )
        if self._pass == -1:
            self._begin_pass(current)
        staging.take(index, parameter)
        self._begin_full()

    def _begin_pass(self, number: int) -> None:
        """The first gradient of a backward pass, by the autograd engine's number for it."""
        for staging in self._stagings:
            staging.drop()  # of a pass that has failed
        self._pass, self._num_begun = number, 0
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _begin_full(self) -> None:
        """In order: collectives are matched by it, and ranks finish gradients in their own."""
        while self._num_begun < len(self._stagings) and self._stagings[self._num_begun].is_full:
            self._begin_next()

    def _begin_next(self) -> None:
        if self._num_begun:
            self._stagings[self._num_begun - 1].finish()  # or buckets would pile up
        self._stagings[self._num_begun].begin(self._thread, self.wire)
        self._num_begun += 1

    def _end_pass(self) -> None:
        """Called by the autograd engine when the backward pass is through."""
        self._pass = -1
        if not self.find_unused_parameters:
            waiting = self._stagings[self._num_begun :]
            shards = [staging.shard for staging in waiting]
            require_none_missing(shards, [s.missing() for s in waiting], self.group)
        while self._num_begun < len(self._stagings):
            self._begin_next()
        self._stagings[-1].finish()

    def _sums(self) -> list[Tensor]:
        """They are there: each backward pass has added to them."""
        by_hand = [
            name
            for shard in self.shards
            for name, parameter in zip(shard.names, shard.flat.parameters, strict=True)
            if parameter.grad is not None
        ]
        if by_hand:
            raise RuntimeError(
                f"{', '.join(by_hand)}: a gradient was set by hand, and here they are used as "
                "backward brings them; use ShardedOptimizer for that"
            )
        segments = [staging.segment for staging in self._stagings]
        if any(segment is None for segment in segments):
            raise RuntimeError("no backward pass since the last step: there is no gradient to use")
        return [segment for segment in segments if segment is not None]

    def _unused(self) -> list[set[int]]:
        missing = [set(range(len(s.shard.names))) - s.seen for s in self._stagings]
        if not self.find_unused_parameters:
            return missing
        return missing_everywhere(missing, self.shards, self.group)

    def _forget_gradients(self) -> None:
        self._pass = -1
        for staging in self._stagings:
            staging.forget()
            for parameter in staging.shard.flat.parameters:
                parameter.grad = None
