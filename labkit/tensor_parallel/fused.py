"""Column and row layers as one autograd function each: communication overlaps backward.

linear.py leaves the order of backward to autograd, which computes both gradients of the product
before the all-reduce. But the all-reduce does not need the gradient of the weight. Here a column
layer's backward

    1. multiplies the gradient of y by w, and starts to sum these parts of x's gradient,
    2. multiplies the gradient of y by x, for the gradient of the weight, while 1 is in flight,
    3. waits for the sum.

Several weights on one x (query, key and value) share the sum and the all-gather.

With SequenceSharded the gathered x is not saved: a rank saves its rows x_nD, and gathers the rest
again in backward. This divides the layer's saved input by n.

The overlap depends on the backend: LIBRARY works in the background, while RING and SHARED_MEMORY
are done when they return. A row layer's backward needs the whole gradient first, and hides nothing.

A pipeline schedule that splits backward postpones step 2: see `WeightGradSink`. Step 2 sends
nothing, so each rank may do it at any time. This costs both advantages. Nothing is left to compute
while step 1's sum is in flight. And the gathered x, n times a rank's rows, is kept until W. Paper:
Korthikanti et al., arXiv:2205.05198, section 4.2.2.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from labkit.collectives.backend import first_order_only
from labkit.tensor_parallel.activation_layout import ActivationLayout
from labkit.tensor_parallel.linear import require_fitting


class WeightGradSink(Protocol):
    """An object that computes gradients of weights later, such as labkit.pipeline.deferred.

    If it is a torch function mode, it calls the functions below again, with itself as `grad_sink`.
    """

    is_deferring: bool

    def put(self, x: Tensor, weight: Tensor, grad_y: Tensor) -> None:
        """Keep grad_y^T x, over all rows, to be added to the leaf `weight`'s gradient."""


def column_linear(
    x: Tensor, layout: ActivationLayout, *weights: Tensor, grad_sink: WeightGradSink | None = None
) -> tuple[Tensor, ...]:
    """Return products of `x` with each weight w_fD: this rank's features y (..., f) of all tokens.

    x: in this layout. Backward sums x's gradient over the ranks once, for all weights together.
    TypeError for anything but tensors and an ActivationLayout; ValueError for weights of another D.
    Wire: forward `gather` of x; backward `reduce` of x's gradient, and `gather` of x again.
    """
    if has_torch_function((x, *weights)):
        all_of_them: tuple[Tensor, ...] = handle_torch_function(
            column_linear, (x, *weights), x, layout, *weights, grad_sink=grad_sink
        )
        return all_of_them
    for weight in weights:
        require_fitting("x", x, weight, "all D features of each token, and weights (f, D)")
    return _ColumnLinear.apply(layout, grad_sink, *_as_autocast((x, *weights)))


def row_linear(
    y: Tensor, layout: ActivationLayout, weight: Tensor, *, grad_sink: WeightGradSink | None = None
) -> Tensor:
    """Return the sum over the ranks of y_BTf w_Df^T, in this layout.

    TypeError and ValueError as in column_linear.
    Wire: forward `reduce` of the output; backward `gather` of its gradient.
    """
    if has_torch_function((y, weight)):
        z: Tensor = handle_torch_function(
            row_linear, (y, weight), y, layout, weight, grad_sink=grad_sink
        )
        return z
    require_fitting("y", y, weight, "this rank's f features, and its weight (D, f)")
    return _RowLinear.apply(layout, grad_sink, *_as_autocast((y, weight)))


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layout: ActivationLayout,
        grad_sink: WeightGradSink | None,
        x: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.layout, ctx.leaves = layout, _Leaves(grad_sink, weights)
        ctx.save_for_backward(x, *weights)
        whole = layout.gather(x)()
        return tuple(F.linear(whole, weight) for weight in weights)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        _, _, needs_x, *needs = ctx.needs_input_grad
        whole = ctx.layout.gather(x) if any(needs) else None
        if needs_x:
            summed = ctx.layout.reduce(_back_through(grads, weights))
        of_weights: list[Tensor | None] = [None] * len(weights)
        if whole is not None:
            inputs = whole()
            of_weights = [
                ctx.leaves.of_weight(number, inputs, grad) if needed else None
                for number, (grad, needed) in enumerate(zip(grads, needs, strict=True))
            ]
        return None, None, summed() if needs_x else None, *of_weights


class _RowLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layout: ActivationLayout,
        grad_sink: WeightGradSink | None,
        y: Tensor,
        weight: Tensor,
    ) -> Tensor:
        ctx.layout, ctx.leaves = layout, _Leaves(grad_sink, (weight,))
        ctx.save_for_backward(y, weight)
        return layout.reduce(F.linear(y, weight))()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight = ctx.saved_tensors
        _, _, needs_y, needs_weight = ctx.needs_input_grad
        whole = ctx.layout.gather(grad)()
        of_weight = ctx.leaves.of_weight(0, y, whole) if needs_weight else None
        return None, None, whole @ weight if needs_y else None, of_weight


class _Leaves:
    """The weights of one layer whose gradients may be postponed: those that are leaves."""

    def __init__(self, grad_sink: WeightGradSink | None, weights: tuple[Tensor, ...]) -> None:
        self._grad_sink = grad_sink
        # Not save_for_backward: its hooks may return a copy, and the gradient belongs to the leaf.
        self._leaves = [each if grad_sink and each.is_leaf else None for each in weights]

    def of_weight(self, number: int, x: Tensor, grad_y: Tensor) -> Tensor | None:
        """Return the gradient of a weight; None if it is postponed."""
        leaf = self._leaves[number]
        if self._grad_sink is None or leaf is None or not self._grad_sink.is_deferring:
            return grad_y.flatten(0, -2).T @ x.flatten(0, -2)
        self._grad_sink.put(x, leaf, grad_y)
        return None


def _as_autocast(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cast to the dtype of torch.autocast, which does not reach into an autograd function."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(each.to(torch.get_autocast_dtype(device)) for each in tensors)


def _back_through(grads: tuple[Tensor, ...], weights: list[Tensor]) -> Tensor:
    """Return this rank's part of x's gradient: the sum over its features of all weights."""
    total = grads[0] @ weights[0]
    for grad, weight in zip(grads[1:], weights[1:], strict=True):
        total.flatten(0, -2).addmm_(grad.flatten(0, -2), weight)
    return total
