"""Features that are cut over the ranks, and features that all ranks hold: how to change over.

                      forward                      backward
    share_features    take this rank's features    all-gather
    gather_features   all-gather                   take this rank's features

A column layer's output has to be gathered only where something needs all of it (its logits, a norm
over features), and a row layer's input has to be cut only where nobody has cut it before. Between
the two, in that order, neither is needed: that is the point of the order.

The convention is that of activation_layout.py: what is whole, all ranks hold and use alike.
Paper: Megatron-LM's `gather_output` and `input_is_parallel`, arXiv:1909.08053.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit import arguments
from labkit.collectives.first_order import first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.tensor_parallel.cut import Cut, even_cut


def share_features(x: Tensor, group: Group | None = None) -> Tensor:
    """x (..., D), whole on every rank -> this rank's features (..., d), as tensor_split cuts.

    Wire: nothing; backward an all-gather of the gradient's shares.
    """
    group = chosen(group)
    _require_features("x", x)
    return _Share.apply(x, even_cut(x.shape[-1], -1, group.size), group)


def gather_features(y: Tensor, num_features: int, group: Group | None = None) -> Tensor:
    """y (..., d), this rank's features -> all of them (..., num_features), on every rank.

    ValueError for shares other than tensor_split's. Wire: an all-gather; backward nothing.
    """
    group = chosen(group)
    num_features = arguments.whole("num_features", num_features, "of all ranks together", least=0)
    _require_features("y", y)
    cut = even_cut(num_features, -1, group.size)
    if y.shape[-1] != len(cut.held[group.rank]):
        raise ValueError(
            f"rank {group.rank} of {group.size} has {len(cut.held[group.rank])} of {num_features} "
            f"features, but y has {y.shape[-1]}; give the features of all ranks together"
        )
    return _Gather.apply(y, cut, group)


def _require_features(name: str, x: Tensor) -> None:
    arguments.instance(name, x, Tensor, "give a tensor, (..., features)")
    if not x.dim():
        raise ValueError(f"{name}={x.item()} has no dim of features; give (..., features)")


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: Cut, group: Group) -> Tensor:
        ctx.cut, ctx.group = cut, group
        return cut.share(x, group.rank).clone()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.cut.gather(grad, ctx.group), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, cut: Cut, group: Group) -> Tensor:
        ctx.cut, ctx.group = cut, group
        return cut.gather(y, group)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.cut.share(grad, ctx.group.rank), None, None
