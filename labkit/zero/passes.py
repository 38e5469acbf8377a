"""When units are gathered, released and reduced, as forward and backward come by.

    forward     before a unit   gather it, begin the next one        hooks on its module
                after           release it
    backward    before          gather it again, begin the one before  its outputs' first gradient
                after           release it, begin to reduce            its inputs' gradients
                at the end      whatever is left, and wait             autograd's callback

The order of units is that of the pass before. A forward pass within backward is a recomputation: it
gathers and releases, and is counted as nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from labkit.collectives.wire import Wire
from labkit.data_parallel.communication_thread import CommunicationThread
from labkit.zero.flat_unit import FlatUnit
from labkit.zero.unit import Unit

_ANOTHER_PASS = (
    "a gradient came by another way than through the outputs: in a backward pass within this one, "
    "or from a tensor that was kept. Call checkpoint(..., use_reentrant=False), and return what a "
    "loss is made of"
)


class Passes:
    """The units of one module, through its passes."""

    def __init__(
        self,
        units: Sequence[Unit],
        kept: Collection[Unit],
        thread: CommunicationThread,
        wire: Wire,
        num_ranks: int,
    ) -> None:
        """units: the first is the rest. num_ranks: over which gradients are averaged."""
        self._units, self._kept = units, kept
        self._thread, self._wire, self._num_ranks = thread, wire, num_ranks
        self._order: list[Unit] = []
        self._seen: list[Unit] = []
        self._pass = -1
        self._reduced: Unit | None = None

    def begin_forward(self) -> None:
        """What an earlier pass has left, after an exception or without a backward, is old."""
        if _is_within_backward():
            return
        self._pass = -1
        for unit in self._units:
            unit.drop()
            for flat in unit.flats:
                flat.require_same_trained()
        self._order, self._seen = self._seen or self._order, []

    def before_module(self, unit: Unit, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """`before`, as a hook on the unit's module."""
        return self.before(unit, (args, kwargs))

    def after_module(self, unit: Unit, _: nn.Module, args: Any, outputs: Any) -> None:
        """`after`, as a hook on the unit's module."""
        self.after(unit, outputs)

    def before(self, unit: Unit, inputs: Any) -> Any:
        """Gather `unit`. Returns the inputs, marked so that their gradients say it is through."""
        if _is_within_backward():
            unit.gather(self._thread, self._wire)
            return inputs
        self._seen.append(unit)
        unit.gather(self._thread, self._wire)
        place = len(self._seen)
        if self._order[:place] == self._seen and place < len(self._order):
            self._order[place].begin_gather(self._thread, self._wire)
        if not torch.is_grad_enabled():
            return inputs
        return _marked(partial(self._after_backward, unit), inputs)

    def after(self, unit: Unit, outputs: Any) -> None:
        """Release `unit`, and be called when its backward begins."""
        if _is_within_backward():
            if not unit.in_backward:
                unit.release()
            return
        tensors = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        if torch.is_grad_enabled() and not tensors and unit.is_trained:
            # Without a hook on an output nothing would gather the unit for backward.
            raise TypeError(
                f"{unit.name} returned {outputs!r:.80}, in which there is no tensor with a "
                "gradient: return tensors, in tuples, lists or dicts if there are several"
            )
        if tensors:
            hook = partial(self._before_backward, unit)
            register_multi_grad_hook(tensors, hook, mode="any")
        if not tensors or unit not in self._kept:
            unit.release()

    def arrived(self, unit: Unit, flat: FlatUnit, index: int, parameter: Tensor) -> None:
        """A gradient is there."""
        if self._pass != torch._C._current_graph_task_id():
            raise RuntimeError(f"{unit.name}: {_ANOTHER_PASS}")
        flat.take(index, parameter)

    def _before_backward(self, unit: Unit, _: Tensor) -> None:
        current = torch._C._current_graph_task_id()
        if self._pass not in (-1, current):
            raise RuntimeError(f"{unit.name}: {_ANOTHER_PASS}")
        if self._pass == -1:
            self._pass = current
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        unit.in_backward = True
        unit.gather(self._thread, self._wire)
        place = _last(self._seen, unit)
        if place > 0:
            self._seen[place - 1].begin_gather(self._thread, self._wire)

    def _after_backward(self, unit: Unit) -> None:
        if unit is not self._units[0]:  # the rest is used to the end
            self._finish(unit)

    def _finish(self, unit: Unit) -> None:
        unit.in_backward = False
        unit.release()
        if self._reduced is not None:
            self._reduced.finish_reduce(self._num_ranks)  # or gradients would pile up
        unit.begin_reduce(self._thread, self._wire, self._num_ranks)
        self._reduced = unit

    def _end_backward(self) -> None:
        for unit in reversed(self._units):
            if unit.in_backward or unit.has_gradients:
                self._finish(unit)
            else:
                unit.release()  # it was gathered ahead, in vain
        if self._reduced is not None:
            self._reduced.finish_reduce(self._num_ranks)
        self._reduced, self._pass = None, -1


class _Through(torch.autograd.Function):
    """Passes tensors on; in backward, says that all of their gradients are there."""

    @staticmethod
    def forward(ctx: Any, tell: Callable[[], None], *tensors: Tensor) -> Any:
        ctx.tell = tell
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.tell()
        return None, *gradients


def _marked(tell: Callable[[], None], inputs: Any) -> Any:
    """The inputs, those with a gradient as outputs of one node of the graph."""
    leaves, structure = tree_flatten(inputs)
    which = [n for n, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    if which:
        marked = _Through.apply(tell, *(leaves[n] for n in which))
        for n, x in zip(which, marked, strict=True):
            leaves[n] = x
    return tree_unflatten(leaves, structure)


def _is_within_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _last(units: Sequence[Unit], unit: Unit) -> int:
    """The place of the last call of `unit`; -1: none is known."""
    return next((n for n in reversed(range(len(units))) if units[n] is unit), -1)
