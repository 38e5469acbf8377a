"""Split a backward: I, the input's gradient, is computed now; W, the weights' gradients, later.

    y = x W^T      I: dx = dy W          the stage before waits for it
                   W: dW = dy^T x        no rank waits for it; x and dy are kept until then

Most of a stage's work is in linear layers, and each half of their backward costs as much as their
forward. So while a stage computes, F.linear is replaced by a Function whose backward computes the
first half and puts the second into a list. Everything else is cheap and stays in I: norms,
embeddings, activations, attention without its projections. (nn.MultiheadAttention stays in I, too:
a mode cannot see its projections, which are not calls of F.linear. The result is right, but little
is left for W.) The layers of labkit.tensor_parallel have Functions of their own, which defer the
same half to the WeightGradStore in their argument `grad_sink`. They communicate in I.

A split backward keeps x and dy of every linear layer until W, and frees everything else in I. This
takes less memory than before I in a block of a transformer, and more in a plain chain of linear
layers. For activation checkpointing inside a stage use labkit.recompute: torch's own recomputes
outside the mode, and raises an error because other tensors were saved.
Paper: Qi et al., arXiv:2401.10241; the list is their WeightGradStore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from labkit.collectives.backend import first_order_only


class _Product(NamedTuple):
    """The deferred half of the backward of y = x W^T + b."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    grad_y: Tensor


class WeightGradStore(TorchFunctionMode):
    """`with deferred: y = stage(x)`; then `deferred.backward(y, grad)` is I, `accumulate()` is W.

    A stage needs one for each microbatch: it keeps what W needs. The gradients of parameters that
    F.linear takes directly are deferred. A weight that is computed from parameters first, for
    example by a cast, gets its gradient in I as usual. Hooks on parameters are not called in W.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products: list[_Product] = []
        self.is_deferring = False  # False for an autograd.grad inside the stage's forward

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and torch.is_grad_enabled():
            x, weight, bias = _arguments_of_linear(*args, **kwargs)
            is_matrix = weight.dim() == 2 and x.dim() >= 2
            if is_matrix and _is_parameter(weight) and (bias is None or _is_parameter(bias)):
                return _Linear.apply(x, weight, bias, self)
        if "grad_sink" in kwargs and torch.is_grad_enabled():  # a function that can defer W itself
            return func(*args, **{**kwargs, "grad_sink": self})
        return func(*args, **kwargs)

    def put(self, x: Tensor, weight: Tensor, grad_y: Tensor) -> None:
        """Defer the weight gradient of a product y = x W^T, without a bias, until W."""
        self.products.append(_Product(x.detach(), weight, None, grad_y))

    def backward(self, root: Tensor | GradientEdge, grad: Tensor | None = None) -> None:
        """Perform I: backward from `root`, without the deferred weights."""
        self.is_deferring = True
        try:
            torch.autograd.backward(root, grad)
        finally:
            self.is_deferring = False

    def accumulate(self) -> None:
        """Perform W: add this microbatch's deferred gradients to the weights' `.grad`."""
        while self.products:
            product = self.products.pop()
            grad_weight, grad_bias = _weight_gradients(product)
            _add_to_grad(product.weight, grad_weight)
            if product.bias is not None and grad_bias is not None:
                _add_to_grad(product.bias, grad_bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, deferred: WeightGradStore
    ) -> Tensor:
        ctx.save_for_backward(x)
        # Not saved like x: hooks on saved tensors may return copies, but W needs the leaves.
        ctx.weight, ctx.bias, ctx.deferred = weight, bias, deferred
        return F.linear(x, weight, bias)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        product = _Product(x.detach(), ctx.weight, ctx.bias, grad_y)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_y @ ctx.weight.to(grad_y.dtype)).to(x.dtype)
        if not ctx.deferred.is_deferring:
            return grad_x, *_weight_gradients(product), None
        ctx.deferred.products.append(product)
        return grad_x, None, None, None


def _weight_gradients(product: _Product) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the weight, dy^T x, and of the bias, the sum of dy."""
    x, weight, bias, grad_y = product
    rows_y, rows_x = grad_y.flatten(0, -2), x.flatten(0, -2).to(grad_y.dtype)
    grad_weight = (rows_y.t() @ rows_x).to(weight.dtype)
    return grad_weight, None if bias is None else rows_y.sum(0).to(bias.dtype)


def _arguments_of_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def _is_parameter(x: Tensor) -> bool:
    return x.is_leaf and x.requires_grad


@torch.no_grad()
def _add_to_grad(parameter: Tensor, grad: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad
