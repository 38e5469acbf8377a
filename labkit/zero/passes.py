"""Gather, release and reduce units, as forward and backward reach them.

    forward     before a unit   gather it, start to gather the next     hook on its module
                after           release it                              hook on its module
    backward    before          gather it again, start the one before   its outputs' first gradient
                after           release it, start to reduce             its inputs' gradients
                at the end      finish the root unit and all others     autograd's callback

The order of units is that of the previous pass. A forward pass within backward is a recomputation:
it gathers and releases, and does nothing else.
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
    "a gradient came by another way than through the outputs: in a backward pass within this one, "
    "or from a tensor that was kept. Call checkpoint(..., use_reentrant=False), and return what a "
    "loss is made of"
)


class Passes:
    """The units of one module, through its passes."""

    def __init__(self, units: Sequence[Unit], resharded: Collection[Unit]) -> None:
        """units: the first is the root unit. resharded: those that are released after forward."""
        self._units, self._resharded = units, resharded
        self._order: list[Unit] = []
        """Units in the order in which the previous forward pass called them."""
        self._called: list[Unit] = []
        """The same for this pass, so far."""
        self._backward = -1
        """The autograd engine's number of the backward pass; -1: none runs."""
        self._reduced: Unit | None = None
        """The one whose gradients are being reduced."""

    def before_forward(self, unit: Unit, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """Gather `unit`. Returns the inputs, marked so that their gradients end its backward."""
        if _is_within_backward():
            unit.gather()
            return args, kwargs
        if unit is self._units[0]:
            self._begin()
        self._called.append(unit)
        unit.gather()
        place = len(self._called)
        if self._order[:place] == self._called and place < len(self._order):
            self._order[place].start_gather()
        if unit is self._units[0] or not torch.is_grad_enabled():
            return args, kwargs  # the root unit is used until the end of backward
        unit.num_passes += 1
        return _marked(partial(self._end_of, unit), (args, kwargs))

    def after_forward(self, unit: Unit, _: nn.Module, args: Any, outputs: Any) -> None:
        """Release `unit`, and have `_before_backward` called when its backward begins."""
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
        """Take the gradient of a parameter, which backward has finished."""
        if self._backward != torch._C._current_graph_task_id():
            raise RuntimeError(f"{unit.name}: {_ANOTHER_PASS}")
        flat.take(index, parameter)

    def _begin(self) -> None:
        """Drop what an earlier pass has left, after an exception or without a backward pass."""
        self._backward = -1
        for unit in self._units:
            unit.num_passes = 0
            unit.drop()
            for flat in unit.flats:
                flat.follow_frozen()
        self._order, self._called = self._called or self._order, []

    def _before_backward(self, unit: Unit, _: Tensor) -> None:
        current = torch._C._current_graph_task_id()
        if self._backward not in (-1, current):
            raise RuntimeError(f"{unit.name}: {_ANOTHER_PASS}")
        if self._backward == -1:
            self._backward = current
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        unit.in_backward = unit.is_reached = True
        unit.gather()
        place = _last(self._called, unit)
        if place > 0:
            self._called[place - 1].start_gather()

    def _end_of(self, unit: Unit) -> None:
        """Note that one call of `unit` has returned all its gradients."""
        unit.num_passes -= 1
        if unit.num_passes > 0:
            unit.in_backward = False
            unit.release()  # its gradients are there after the last of its calls
        else:
            self._finish(unit)

    def _finish(self, unit: Unit) -> None:
        """Release `unit` after its backward, and start to reduce its gradients."""
        unit.in_backward = False
        unit.release()
        if self._reduced is not None:
            self._reduced.finish_reduce()  # or gradients would pile up
        unit.start_reduce()
        self._reduced = unit

    def _end_backward(self) -> None:
        for unit in reversed(self._units):
            unit.num_passes = 0
            if unit.is_reached or unit.has_gradients:
                self._finish(unit)
            else:
                unit.release()  # it was gathered ahead, and backward did not reach it
        if self._reduced is not None:
            self._reduced.finish_reduce()
        self._reduced, self._backward = None, -1


class _Mark(torch.autograd.Function):
    """Pass tensors on; in backward, call `then` when all of their gradients are there."""

    @staticmethod
    def forward(ctx: Any, then: Callable[[], None], *tensors: Tensor) -> Any:
        ctx.then = then
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.then()
        return None, *gradients


def _marked(then: Callable[[], None], inputs: Any) -> Any:
    """Return the inputs, those with a gradient as outputs of one node of the graph."""
    leaves, structure = tree_flatten(inputs)
    which = [n for n, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    if which:
        marked = _Mark.apply(then, *(leaves[n] for n in which))
        for n, x in zip(which, marked, strict=True):
            leaves[n] = x
    return tree_unflatten(leaves, structure)


def _is_within_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _last(units: Sequence[Unit], unit: Unit) -> int:
    """Return the place of the last call of `unit`; -1: none is known."""
    return next((n for n in reversed(range(len(units))) if units[n] is unit), -1)
