"""Gather, release and reduce units when forward and backward reach them.

    forward     before a unit   gather it, start to gather the next     hook on its module
                after           release it                              hook on its module
    backward    before          gather it again, start the one before   its outputs' first gradient
                after           release it, start to reduce             its inputs' gradients
                at the end      finish the root unit and all others     autograd's callback

Prefetching assumes that units are called in the order of the previous pass. A forward pass within
backward is a recomputation, for activation checkpointing: it only gathers and releases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from labkit.zero.unit import FlatParameter, Unit

_ANOTHER_PASS = (
    "a gradient did not come through the module's outputs in this backward pass, but through a "
    "backward pass inside it, or a tensor kept from forward. Call checkpoint(..., "
    "use_reentrant=False), and return every tensor that a loss uses"
)


class Passes:
    """The units of one module, and their state in the present forward or backward pass."""

    def __init__(self, units: Sequence[Unit], resharded: Collection[Unit]) -> None:
        """units: the first is the root unit. resharded: those that are released after forward."""
        self._units, self._resharded = units, resharded
        self._previous_calls: list[Unit] = []
        """The units in the order in which the previous forward pass called them."""
        self._calls: list[Unit] = []
        """The units that this forward pass has called so far, in order."""
        self._backward_id = -1
        """The autograd engine's ID of the backward pass; -1: none runs."""
        self._reducing: Unit | None = None
        """The unit whose gradients are being reduced."""

    def before_forward(self, unit: Unit, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """Gather `unit`. Return its inputs, marked: when their gradients are complete, its backward
        has ended."""
        if _is_within_backward():
            unit.gather()
            return args, kwargs
        if unit is self._units[0]:
            self._begin()
        self._calls.append(unit)
        unit.gather()
        place = len(self._calls)
        if self._previous_calls[:place] == self._calls and place < len(self._previous_calls):
            self._previous_calls[place].start_gather()
        if unit is self._units[0] or not torch.is_grad_enabled():
            return args, kwargs  # the root unit is used until the end of backward
        unit.num_passes += 1
        return _marked(partial(self._end_call, unit), (args, kwargs))

    def after_forward(self, unit: Unit, _: nn.Module, args: Any, outputs: Any) -> None:
        """Release `unit`, and hook `_before_backward` to the gradients of its outputs."""
        if _is_within_backward():
            if not unit.in_backward:
                unit.release()
            return
        tensors = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        if torch.is_grad_enabled() and not tensors and unit.is_trainable:
            # Without a hook on an output nothing would gather the unit for backward.
            raise TypeError(
                f"{unit.name} returned {outputs!r:.80}, in which there is no tensor with a "
                "gradient: return tensors, in tuples, lists or dicts if there are several"
            )
        if tensors:
            hook = partial(self._before_backward, unit)
            register_multi_grad_hook(tensors, hook, mode="any")
        if not tensors or unit in self._resharded:
            unit.release()

    def arrived(self, unit: Unit, flat: FlatParameter, index: int, parameter: Tensor) -> None:
        """Move a parameter's complete gradient into the unit's flat gradients."""
        if self._backward_id != torch._C._current_graph_task_id():
            raise RuntimeError(f"{unit.name}: {_ANOTHER_PASS}")
        flat.collect_gradient(index, parameter)

    def _begin(self) -> None:
        """Begin a forward pass. Drop all that a pass without a complete backward has left."""
        self._backward_id = -1
        for unit in self._units:
            unit.num_passes = 0
            unit.drop()
            for flat in unit.flats:
                flat.sync_requires_grad()
        self._previous_calls, self._calls = self._calls or self._previous_calls, []

    def _before_backward(self, unit: Unit, _: Tensor) -> None:
        current = torch._C._current_graph_task_id()
        if self._backward_id not in (-1, current):
            raise RuntimeError(f"{unit.name}: {_ANOTHER_PASS}")
        if self._backward_id == -1:
            self._backward_id = current
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        unit.in_backward = unit.is_reached = True
        unit.gather()
        place = _last_call(self._calls, unit)
        if place > 0:
            self._calls[place - 1].start_gather()

    def _end_call(self, unit: Unit) -> None:
        """End the backward pass of one call of `unit`; after that of its last call, finish it."""
        unit.num_passes -= 1
        if unit.num_passes > 0:
            unit.in_backward = False
            unit.release()  # another call still adds to its gradients: no reduction yet
        else:
            self._finish(unit)

    def _finish(self, unit: Unit) -> None:
        """Release `unit` after its backward, and start to reduce its gradients."""
        unit.in_backward = False
        unit.release()
        if self._reducing is not None:
            self._reducing.finish_reduce()  # at most one unit's gradients are reduced at a time
        unit.start_reduce()
        self._reducing = unit

    def _end_backward(self) -> None:
        for unit in reversed(self._units):
            unit.num_passes = 0
            if unit.is_reached or unit.has_gradients:
                self._finish(unit)
            else:
                unit.release()  # it was gathered ahead, and backward did not reach it
        if self._reducing is not None:
            self._reducing.finish_reduce()
        self._reducing, self._backward_id = None, -1


class _Mark(torch.autograd.Function):
    """Return the tensors, and in backward call `then` when all of their gradients are complete."""

    @staticmethod
    def forward(ctx: Any, then: Callable[[], None], *tensors: Tensor) -> Any:
        ctx.then = then
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.then()
        return None, *gradients


def _marked(then: Callable[[], None], inputs: Any) -> Any:
    """Return the inputs. Those that need a gradient become outputs of one _Mark node."""
    leaves, structure = tree_flatten(inputs)
    which = [n for n, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    if which:
        marked = _Mark.apply(then, *(leaves[n] for n in which))
        for n, x in zip(which, marked, strict=True):
            leaves[n] = x
    return tree_unflatten(leaves, structure)


def _is_within_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _last_call(units: Sequence[Unit], unit: Unit) -> int:
    """Return the index of the last call of `unit`, or -1."""
    return next((n for n in reversed(range(len(units))) if units[n] is unit), -1)
