"""Gradients, moved into one flat tensor as backward finishes them.

    w.grad = view of flat      after the hook: what autograd made is freed, the view has its numbers

A second backward pass adds to the view, in place: gradients of several microbatches add up there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.data_parallel.bucketed import require_plain_numbers
from labkit.data_parallel.hooks import on_gradient, remove_with
from labkit.zero.shard import Shard


class Arrival:
    """The gradients of one shard's parameters, all of them, in one flat tensor (n*k,)."""

    def __init__(self, shard: Shard, before: Callable[[], None]) -> None:
        """before: called with each gradient that arrives; it may refuse."""
        self.shard = shard
        self.flat = torch.zeros_like(shard.flat.weights)
        self._views = shard.flat.views(self.flat)
        self._before = weakref.WeakMethod(before)
        take = self._take
        parameters = shard.flat.parameters
        remove_with(self, [on_gradient(p, take, index) for index, p in enumerate(parameters)])

    def _take(self, index: int, parameter: Tensor) -> None:
        if (before := self._before()) is not None:
            before()
        self._move(index, parameter)

    def _move(self, index: int, parameter: Tensor) -> None:
        gradient, view = parameter.grad, self._views[index]
        require_plain_numbers(gradient, self.shard.names[index])
        if gradient is not None and gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            parameter.grad = view

    def missing(self) -> set[int]:
        """Parameters without a gradient, by number."""
        return {n for n, p in enumerate(self.shard.flat.parameters) if p.grad is None}

    def settle(self) -> None:
        """Take in gradients that somebody has set by hand, or put in the place of ours."""
        for index, parameter in enumerate(self.shard.flat.parameters):
            self._move(index, parameter)

    def fill(self, missing: set[int]) -> None:
        """Zeros for these: what other ranks have is added to it."""
        for index in missing:
            self._views[index].zero_()

    def forget(self) -> None:
        """Take the gradients away from the parameters; the memory stays."""
        for parameter in self.shard.flat.parameters:
            parameter.grad = None
