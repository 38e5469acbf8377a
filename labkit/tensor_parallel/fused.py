"""The two linear layers as one function each: what backward needs travels while it computes.

linear.py puts a collective beside a matrix product and leaves the rest to autograd, which then
computes both gradients of the product before it goes on to the all-reduce. But the gradient of the
weight is not needed for that. Here a column layer's backward

    1. multiplies the gradient of y by w: partial sums of x's gradient; starts to add them up,
    2. multiplies it by x: the gradient of the weight, while 1 is under way,
    3. waits for the sum.

Several weights share one x (query, key and value), its one sum, and its one all-gather.

With TokenShards the gathered x is not kept: a rank keeps its rows x_nD, and gathers the rest once
more in backward. That is what makes the activations of a layer fall by n.

How much of it is hidden is the wire's matter: LIBRARY works in the background, RING and
SHARED_MEMORY are done when they return. A row layer's backward needs all of the gradient at once,
and hides nothing.
Paper: Korthikanti et al., arXiv:2205.05198, section 4.2.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import arguments
from labkit.collectives.first_order import first_order_only
from labkit.tensor_parallel.between import Between, required


def column_linear(x: Tensor, between: Between, *weights: Tensor) -> tuple[Tensor, ...]:
    """What `x` gives with each weight w_fD: this rank's features y (..., f) of all tokens.

    x: as it is `between` layers. Gradients of all weights and of x; x gets one sum over the ranks.
    TypeError for what is no tensor, or no Between; ValueError for weights of another D.
    Wire: forward x made whole; backward one sum of x's size, and x made whole once more.
    """
    for weight in weights:
        require_fitting("x", x, weight, "all D features of each token, and weights (f, D)")
    return _ColumnLinear.apply(required(between), *_as_autocast((x, *weights)))


def row_linear(y: Tensor, between: Between, weight: Tensor) -> Tensor:
    """The ranks' parts y_BTf w_Df^T, added up, in the form that they have `between` layers.

    TypeError and ValueError as of column_linear.
    Wire: forward one sum of the output; backward its gradient made whole.
    """
    require_fitting("y", y, weight, "this rank's f features, and its weight (D, f)")
    return _RowLinear.apply(required(between), *_as_autocast((y, weight)))


def require_fitting(name: str, x: Tensor, weight: Tensor, instead: str) -> None:
    """TypeError for what are no tensors, ValueError unless the last dims are equal."""
    arguments.instance(name, x, Tensor, f"give {instead}")
    arguments.instance("weight", weight, Tensor, f"give {instead}")
    if not x.dim() or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} does not fit a weight of {tuple(weight.shape)}: "
            f"give {instead}"
        )


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, between: Between, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.between = between
        ctx.save_for_backward(x, *weights)
        whole = between.whole(x)()
        return tuple(F.linear(whole, weight) for weight in weights)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        _, needs_x, *needs = ctx.needs_input_grad
        whole = ctx.between.whole(x) if any(needs) else None
        if needs_x:
            summed = ctx.between.summed(_back_through(grads, weights))
        of_weights: list[Tensor | None] = [None] * len(weights)
        if whole is not None:
            inputs_ND = whole().flatten(0, -2)
            of_weights = [
                grad.flatten(0, -2).T @ inputs_ND if needed else None
                for grad, needed in zip(grads, needs, strict=True)
            ]
        return None, summed() if needs_x else None, *of_weights


class _RowLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, between: Between, y: Tensor, weight: Tensor) -> Tensor:
        ctx.between = between
        ctx.save_for_backward(y, weight)
        return between.summed(F.linear(y, weight))()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight = ctx.saved_tensors
        _, needs_y, needs_weight = ctx.needs_input_grad
        whole = ctx.between.whole(grad)()
        of_weight = whole.flatten(0, -2).T @ y.flatten(0, -2) if needs_weight else None
        return None, whole @ weight if needs_y else None, of_weight


def _as_autocast(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """In the dtype that torch.autocast asks for: it cannot look into these functions' backward."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(each.to(torch.get_autocast_dtype(device)) for each in tensors)


def _back_through(grads: tuple[Tensor, ...], weights: list[Tensor]) -> Tensor:
    """Partial sums of x's gradient: over this rank's features, of all weights."""
    total = grads[0] @ weights[0]
    for grad, weight in zip(grads[1:], weights[1:], strict=True):
        total.flatten(0, -2).addmm_(grad.flatten(0, -2), weight)
    return total
