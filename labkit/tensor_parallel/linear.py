"""ColumnLinear and RowLinear: linear layers sharded over ranks; nothing is sent between the two.

    y_BTf = x_BTD w_fD^T     ColumnLinear: a rank holds some rows of w_FD, and computes these output
                             features (columns of the paper's A = w^T)
    z_BTD = y_BTf w_Df^T     RowLinear: a rank holds the columns of w_DF of its features y_BTf, and
                             computes a partial sum over f; an all-reduce adds the partial sums

It adds to plain.py: modules that shard a whole nn.Linear, and the `Sharding` that a checkpoint
reads. activation_layout.py has f and g, also for another layout between layers.

A column layer's output, sharded by features, is a row layer's input. Any element-wise function
(GELU) fits in between. The other order would need an all-reduce after the row layer and a gather
after the column layer: twice the communication. Two functions are for that order, and for
operations that need all features (logits, a norm over features):

                      forward                      backward
    share_features    take this rank's features    all-gather
    gather_features   all-gather                   take this rank's features

n need not divide F: shares then differ by one feature, as with torch.tensor_split. A `Sharding` is
the layout of one parameter: it takes a rank's share of the full tensor, and gathers the shares
again. Several ranks may hold the same rows (key-value heads with more ranks than heads).

Wire, for B*T*D numbers (Replicated; SequenceSharded sends as much, as all-gather + reduce-scatter):
    ColumnLinear    forward nothing, backward one all-reduce of x's gradient (f)
    RowLinear       forward one all-reduce of the output, backward nothing (g)
Paper: Megatron-LM, arXiv:1909.08053, section 3, and its `gather_output` and `input_is_parallel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.collectives.backend import first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.global_norm import mark_gradient_shard
from labkit.shards import Extent
from labkit.tensor_parallel.activation_layout import (
    Replicated,
    enter_parallel_region,
    leave_parallel_region,
)


@dataclass(frozen=True)
class Sharding:
    """Rank r holds `ranges[r]` of dim `dim`, or everything if `dim` is None (replicated)."""

    dim: int | None = None
    ranges: tuple[range, ...] = ()

    def share(self, full: Tensor, rank: int) -> Tensor:
        """Return a rank's share, as a view."""
        if self.dim is None:
            return full
        part = self.ranges[rank]
        return full.narrow(self.dim, part.start, len(part))

    def num_holders(self, group: Group) -> int:
        """Return how many ranks hold the same share as this rank."""
        if self.dim is None:
            return group.size
        return self.ranges.count(self.ranges[group.rank])

    def parameter(self, full: Tensor, rank: int) -> nn.Parameter:
        """Copy a rank's share into a new parameter, which is frozen if `full` is."""
        share = self.share(full.detach(), rank).clone(memory_format=torch.contiguous_format)
        parameter = nn.Parameter(share, full.requires_grad)
        if self.dim is not None and len(self.ranges) > 1 and full.requires_grad:
            parameter.register_post_accumulate_grad_hook(mark_gradient_shard)
        return parameter

    def full_shape(self, share: Tensor) -> torch.Size:
        """Return the shape of the tensor that a share is part of."""
        shape = list(share.shape)
        if self.dim is not None:
            shape[self.dim] = max(part.stop for part in self.ranges)
        return torch.Size(shape)

    def extent(self, share: Tensor, rank: int) -> Extent:
        """Return which elements of the full tensor a rank's share is."""
        shape = tuple(self.full_shape(share))
        if self.dim is None:
            return Extent.whole(shape)
        return Extent.of_dim(shape, self.dim, self.ranges[rank])

    def gather(self, share: Tensor, group: Group) -> Tensor:
        """Return the whole tensor, on every rank, from all ranks' shares.

        Wire: an all-gather of shares padded with zeros to the length of the longest.
        """
        if self.dim is None:
            return share.detach().clone()
        rows = share.detach().movedim(self.dim, 0)
        longest = max(map(len, self.ranges))
        filled = rows.new_zeros(longest, *rows.shape[1:])
        filled[: len(rows)] = rows
        full = rows.new_empty(max(part.stop for part in self.ranges), *rows.shape[1:])
        for part, theirs in zip(self.ranges, group.all_gather(filled).split(longest), strict=True):
            full[part.start : part.stop] = theirs[: len(part)]
        return full.movedim(0, self.dim).contiguous()


REPLICATED = Sharding()


class ShardedWeight(nn.Module):
    """This rank's share of a linear layer's weight, under the weight's name in GPT."""

    def __init__(self, full: Tensor, sharding: Sharding, group: Group) -> None:
        super().__init__()
        self.shardings = {"weight": sharding}
        self.weight = sharding.parameter(full, group.rank)


def even_sharding(length: int, dim: int, num_ranks: int) -> Sharding:
    """Shard a dim as torch.tensor_split does: the first `length % n` ranks hold one more."""
    least, more = divmod(length, num_ranks)
    starts = [rank * least + min(rank, more) for rank in range(num_ranks + 1)]
    return Sharding(dim, tuple(map(range, starts, starts[1:])))


def head_sharding(heads: Sequence[range], head_dim: int, dim: int) -> Sharding:
    """Shard a dim by heads: rank r holds all features of the heads `heads[r]`."""
    ranges = (range(part.start * head_dim, part.stop * head_dim) for part in heads)
    return Sharding(dim, tuple(ranges))


class ColumnLinear(nn.Module):
    """x (..., D), whole on every rank -> y (..., f), this rank's features of x W^T + bias.

    This rank holds w_fD and the bias of its features: both are Shard(0). `linear`: the whole layer,
    from which this rank's share is copied. It must be the same on every rank; this is not checked.
    """

    def __init__(self, linear: nn.Linear, group: Group | None = None) -> None:
        super().__init__()
        self.group = chosen(group)
        sharding = even_sharding(linear.out_features, 0, self.group.size)
        self.shardings = {"weight": sharding, "bias": sharding}
        self.weight = sharding.parameter(linear.weight, self.group.rank)
        self.bias = (
            None if linear.bias is None else sharding.parameter(linear.bias, self.group.rank)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's features. Wire: nothing; backward one all-reduce of x's gradient.

        ValueError unless x has all features that the whole layer takes.
        """
        require_fitting("x", x, self.weight, "all features; gather_features joins the ranks'")
        return F.linear(enter_parallel_region(x, Replicated(self.group)), self.weight, self.bias)


class RowLinear(nn.Module):
    """y (..., f), this rank's features -> z (..., D), whole on every rank: y W^T + bias.

    This rank holds w_Df, Shard(1), and the whole bias, which is added once, after the sum.
    `linear`: see ColumnLinear.
    """

    def __init__(self, linear: nn.Linear, group: Group | None = None) -> None:
        super().__init__()
        self.group = chosen(group)
        sharding, rank = even_sharding(linear.in_features, 1, self.group.size), self.group.rank
        self.shardings = {"weight": sharding}
        self.weight = sharding.parameter(linear.weight, rank)
        self.bias = None if linear.bias is None else REPLICATED.parameter(linear.bias, rank)

    def forward(self, y: Tensor) -> Tensor:
        """Return the whole output. Wire: one all-reduce of it; backward nothing.

        ValueError unless y has this rank's features.
        """
        instead = "this rank's features: a column layer's output, or what share_features cuts out"
        require_fitting("y", y, self.weight, instead)
        z = leave_parallel_region(F.linear(y, self.weight), Replicated(self.group))
        return z if self.bias is None else z + self.bias


def require_fitting(name: str, x: Tensor, weight: Tensor, instead: str) -> None:
    """Raise ValueError unless the last dims are equal."""
    if not x.dim() or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} does not fit a weight of {tuple(weight.shape)}: "
            f"give {instead}"
        )


def share_features(x: Tensor, group: Group | None = None) -> Tensor:
    """Return this rank's features (..., d) of x (..., D), by torch.tensor_split's rule.

    Wire: nothing; backward an all-gather of the gradient's shares.
    """
    group = chosen(group)
    return _Share.apply(x, even_sharding(x.shape[-1], -1, group.size), group)


def gather_features(y: Tensor, num_features: int, group: Group | None = None) -> Tensor:
    """Gather all features (..., num_features) from each rank's own, y (..., d), on every rank.

    ValueError for shares other than tensor_split's. Wire: an all-gather; backward nothing.
    """
    group = chosen(group)
    sharding = even_sharding(num_features, -1, group.size)
    num_own = len(sharding.ranges[group.rank])
    if y.shape[-1] != num_own:
        raise ValueError(
            f"rank {group.rank} of {group.size} has {num_own} of {num_features} "
            f"features, but y has {y.shape[-1]}; give the features of all ranks together"
        )
    return _Gather.apply(y, sharding, group)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sharding: Sharding, group: Group) -> Tensor:
        ctx.sharding, ctx.group = sharding, group
        return sharding.share(x, group.rank).clone()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.sharding.gather(grad, ctx.group), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, sharding: Sharding, group: Group) -> Tensor:
        ctx.sharding, ctx.group = sharding, group
        return sharding.gather(y, group)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.sharding.share(grad, ctx.group.rank), None, None
