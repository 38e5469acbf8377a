"""A bucket of gradients, there from its first gradient until it is reduced.

.grad  -->  staging (n*k,)  -- reduce-scatter -->  segment (k,), added to for every microbatch
freed       freed when it is reduced                kept until the step
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.collectives.wire import Wire
from labkit.comm import Group
from labkit.data_parallel.bucketed import require_plain_numbers
from labkit.data_parallel.communication_thread import CommunicationThread, OnThread
from labkit.memory import announce
from labkit.zero.flat import is_divided_before
from labkit.zero.shard import Shard


class Staging:
    """The gradients of one shard's parameters in one backward pass, and their sum over passes."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.segment: Tensor | None = None
        """(k,): the sum over ranks and passes. None before the first."""
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
        """Whether every gradient is there."""
        return len(self._ready) == len(self.shard.names)

    def missing(self) -> set[int]:
        """Those that are not, by number."""
        return set(range(len(self.shard.names))) - self._ready

    def begin(self, thread: CommunicationThread, wire: Wire) -> None:
        """Begin to reduce it, with zeros for what is missing."""
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
                segment: Tensor = wire.reduce_scatter(flat, group, in_place=True).wait()
                return segment

        self._reducing = thread.start(reduce)

    def finish(self) -> None:
        """Wait for it, keep this rank's segment of the sum, and free the rest."""
        if self._reducing is None:
            return
        reduced = self._reducing.wait()
        if self.segment is None:
            self.segment = reduced.clone()
            announce(self.segment, "gradients")
        else:
            self.segment += reduced
        self.seen |= self._ready
        self.drop()

    def drop(self) -> None:
        """Free what this pass has brought."""
        self._flat, self._views, self._reducing = None, (), None
        self._ready = set()

    def forget(self) -> None:
        """Free everything, after a step."""
        self.drop()
        self.segment, self.seen = None, set()

    def _allocate(self) -> None:
        self._flat = torch.zeros_like(self.shard.flat.weights)
        self._views = self.shard.flat.views(self._flat)
        announce(self._flat, "buffers")
