"""The norm between two tensor-parallel layers, under sequence parallelism.

An interviewer asks: "Tensor parallelism all-reduces the output of every row layer, and then all
ranks add the same residual and compute the same norm. What is redundant, and what does it cost in
memory? Split that region over the sequence. Why does it send no more bytes? And which gradient is
wrong if you only think of the activations?"

Write `sequence_parallel_norm(z_ND, r_nD, weight_D, group)`: from the partial sums of a row layer to
the input of the next column layer. Rank r has the r-th of n blocks of k = ceil(N / n) rows, the
last ranks fewer, or none: rows r k to (r+1) k, as far as there are any.

Contract
    z_ND      (N, D): this rank's part of the row layer's output, of all N = B T rows; the output is
              the sum over the ranks
    r_nD      (n_rows, D): the residual of this rank's rows
    weight_D  (D,): of the norm, the same on all ranks
    group     `group.rank`, `group.size`, and three collectives, which no gradient flows through:
              `reduce_scatter(x)`, which gives rank r the r-th of n equal blocks of the sum, and n
              must divide the rows; `all_gather(x)`, which joins the ranks' tensors, of one size, in
              the order of the ranks; `all_reduce(x)`. Those that add take op="sum" or "mean"
    returns   (residual_nD, x_ND): this rank's rows of the row layer's output plus the residual; and
              all N rows of LayerNorm(that), on every rank: over D, without bias, eps 1e-5
    Gradients of z_ND, r_nD and weight_D, by backward(): what is differentiated is the sum of all
              ranks' losses. The next layer's ranks have different columns, so the gradient of x_ND
              that comes in on one rank is a part, too. weight_D is used on every rank, for other
              rows: its gradient is the sum, the same on all ranks
    Nothing that is passed may change, or keep a hook

Budget, on every rank of two or more
    sent    forward 2 (n-1) k D numbers, backward as many and 2 (n-1)/n D more, as collectives on a
            ring send: an all_reduce of X bytes 2(n-1)/n X, a reduce_scatter (n-1)/n X, an
            all_gather (n-1) times what a rank passes
    memory  between forward and backward nothing of N rows is kept, besides z_ND and x_ND; at any
            moment there are two more tensors of N rows at most: what travels, and what arrives

Of use: torch.autograd.Function; torch.nn.functional.layer_norm and pad.
"""

from typing import Any

import torch
from torch.nn.functional import layer_norm, pad

from labkit.comm import Group


def sequence_parallel_norm(
    z_ND: torch.Tensor, r_nD: torch.Tensor, weight_D: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of the residual, and all rows of its norm.

    Wire, on a ring: what one all-reduce of z_ND sends, forward and backward each; backward one of
    weight_D's gradient besides.
    """
    ### BEGIN SOLUTION
    residual_nD = r_nD + _ReduceScatter.apply(z_ND, len(r_nD), group)
    weight_D = _OfAllRanks.apply(weight_D, group)
    normed_nD = layer_norm(residual_nD, weight_D.shape, weight_D, eps=1e-5)
    return residual_nD, _AllGather.apply(normed_nD, len(z_ND), group)


def _reduced(x_ND: torch.Tensor, num_rows: int, group: Group) -> torch.Tensor:
    """The sum of this rank's rows, of which there are num_rows."""
    padding = (0, 0, 0, -len(x_ND) % group.size)  # rows at the end: there the last ranks lack some
    return group.reduce_scatter(pad(x_ND, padding))[:num_rows]


def _gathered(x_nD: torch.Tensor, num_rows: int, group: Group) -> torch.Tensor:
    """The rows of all ranks, of which there are num_rows."""
    rows_per_rank = -(-num_rows // group.size)
    return group.all_gather(pad(x_nD, (0, 0, 0, rows_per_rank - len(x_nD))))[:num_rows]


class _ReduceScatter(torch.autograd.Function):
    """Every z is in the sum: backward hands each rank the gradients of all rows."""

    @staticmethod
    def forward(ctx: Any, z_ND: torch.Tensor, num_rows: int, group: Group) -> torch.Tensor:
        ctx.num_rows, ctx.group = len(z_ND), group
        return _reduced(z_ND, num_rows, group)

    @staticmethod
    def backward(ctx: Any, gradient_nD: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _gathered(gradient_nD, ctx.num_rows, ctx.group), None, None


class _AllGather(torch.autograd.Function):
    """Every rank has used this rank's rows: backward adds up what they all have to say of them."""

    @staticmethod
    def forward(ctx: Any, x_nD: torch.Tensor, num_rows: int, group: Group) -> torch.Tensor:
        ctx.num_rows, ctx.group = len(x_nD), group
        return _gathered(x_nD, num_rows, group)

    @staticmethod
    def backward(ctx: Any, gradient_ND: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _reduced(gradient_ND, ctx.num_rows, ctx.group), None, None


class _OfAllRanks(torch.autograd.Function):
    """A parameter that each rank uses for rows of its own."""

    @staticmethod
    def forward(ctx: Any, weight_D: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return weight_D.view_as(weight_D)

    @staticmethod
    def backward(ctx: Any, gradient_D: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.all_reduce(gradient_D), None

    ### END SOLUTION
