"""A backward in two halves: I, the gradient of the input, now; W, those of the weights, later.

    y = x W^T      I: dx = dy W          the stage before waits for it
                   W: dW = dy^T x        nobody waits for it; keeps x and dy until then

Most of a stage's work is such products, and of each of them the two halves cost as much as its
forward. So while a stage computes, its calls of F.linear go through a Function whose backward does
the first half and puts the second into a list. All else is cheap and stays in I: norms, embeddings,
activations, attention without its projections.

What a split backward holds until W is x and dy of every product; the rest is let go with I.
Paper: Qi et al., arXiv:2401.10241; the list is their WeightGradStore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from labkit.collectives.first_order import first_order_only


class _Product(NamedTuple):
    """The second half of one y = x W^T + b."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    grad_y: Tensor


class DeferredWeights(TorchFunctionMode):
    """`with deferred: y = stage(x)`; y.backward() is then I, and `deferred.accumulate()` is W.

    One for each microbatch of a stage: it holds what W needs. Parameters that F.linear takes
    directly are deferred; what was computed from parameters first (a cast, a norm of weights) is
    not, and gets its gradient in I as usual. Hooks on parameters do not see a W.
    """

    def __init__(self) -> None:
        super().__init__()
        self._products: list[_Product] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and torch.is_grad_enabled():
            x, weight, bias = _of_linear(*args, **kwargs)
            if _is_parameter(weight) and (bias is None or _is_parameter(bias)):
                return _Linear.apply(x, weight, bias, self._products)
        return func(*args, **kwargs)

    def accumulate(self) -> None:
        """W: add the weights' gradients of this microbatch to their `.grad`."""
        for x, weight, bias, grad_y in self._products:
            rows_y, rows_x = grad_y.flatten(0, -2), x.flatten(0, -2).to(grad_y.dtype)
            _add_to_grad(weight, rows_y.t() @ rows_x)
            if bias is not None:
                _add_to_grad(bias, rows_y.sum(0))
        self._products.clear()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: list[_Product]
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.products = products
        return F.linear(x, weight, bias)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight, bias = ctx.saved_tensors
        ctx.products.append(_Product(x.detach(), weight, bias, grad_y))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return (grad_y @ weight.to(grad_y.dtype)).to(x.dtype), None, None, None


def _of_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def _is_parameter(x: Tensor) -> bool:
    return x.is_leaf and x.requires_grad


@torch.no_grad()
def _add_to_grad(parameter: Tensor, grad: Tensor) -> None:
    grad = grad.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad
