"""Tensor parallelism in the fewest lines: a column and a row layer. The first rung.

    x_BTD --f--> up_fD --> gelu --> hidden_BTf --> down_Df --> partial sums --g--> y_BTD

Layout: x and y are whole on every rank. A rank computes f of the F hidden features: it has f rows
of up's weight and the same f columns of down's, and needs no feature of another rank. The paper
stores weights transposed, so it calls up column-parallel and down row-parallel.
Sent: one all-reduce of y forward (g), one of x's gradient backward (f).
Paper: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
"""

from typing import Any

import torch
from torch.nn.functional import gelu, linear

from labkit.comm import Group


def column_row_mlp(
    x_BTD: torch.Tensor,
    up_fD: torch.Tensor,
    up_f: torch.Tensor,
    down_Df: torch.Tensor,
    down_D: torch.Tensor,
    group: Group,
) -> torch.Tensor:
    """Compute y_BTD of the whole MLP on every rank.

    On a ring each rank sends 2(n-1)/n of x's bytes forward, and as many backward.
    """
    hidden_BTf = gelu(linear(_Copied.apply(x_BTD, group), up_fD, up_f))
    # The bias is added once, after the sum. In each partial result it would be added n times.
    return _Summed.apply(linear(hidden_BTf, down_Df), group) + down_D


class _Copied(torch.autograd.Function):
    """Megatron's f: identity forward. Backward sums x's gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.group.all_reduce(gradient), None


class _Summed(torch.autograd.Function):
    """Megatron's g: all-reduce forward. Identity backward: every rank has y's whole gradient."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Group) -> torch.Tensor:
        return group.all_reduce(partial)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None
