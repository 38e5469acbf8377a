"""A tensor-parallel MLP: columns, then rows.

An interviewer asks: "Split a transformer's MLP over the ranks of a node. Which of the two weights
do you split along which dim, and why that way round? Where does it communicate, forward and
backward? And what do you do with the second bias?"

Write `column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group)`: y = down(gelu(up(x))), of which
this rank computes with its share of the F features, and no other.

Contract
    x_BTD    the same on every rank, and it needs a gradient. The caller has other uses for it, as
             in x + mlp(x), and these have gradients of their own
    up_fD    this rank's share of the rows of up, whose weight is (F, D); up_f its share of the
             bias. Ranks have the features in rank order: the first F % n of them one more than
             the others, so that a rank may have none
    down_Df  its share of the columns of down, whose weight is (D, F), of the same features
    down_D   the bias of down, all of it: the same on every rank
    group    `group.rank`, `group.size`, and two collectives: `all_reduce(x)`, and `all_gather(x)`,
             which joins the ranks' tensors, of one shape, along dim 0. No gradient flows through
             them: autograd takes what they return for a constant
    returns  y_BTD, the same on every rank. Every rank computes the same loss from it, and calls
             backward: then the gradients of x, of all shares and of down_D are those of one
             process with the whole MLP. gelu is torch.nn.functional.gelu

Budget, on every rank
    forward   one all_reduce of B T D numbers
    backward  one all_reduce of B T D numbers

Of use: torch.autograd.Function, whose forward is not recorded, and whose backward you write.

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
    """y_BTD of the whole MLP, on every rank.

    Wire, on a ring: 2(n-1)/n of x's bytes forward, and as much backward.
    """
    ### BEGIN SOLUTION
    hidden_BTf = gelu(linear(_Copied.apply(x_BTD, group), up_fD, up_f))
    # The bias once, after the sum: as a part of each partial result it would come n times.
    return _Summed.apply(linear(hidden_BTf, down_Df), group) + down_D


class _Copied(torch.autograd.Function):
    """Megatron's f. Each rank uses x for features of its own, so their gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.group.all_reduce(gradient), None


class _Summed(torch.autograd.Function):
    """Megatron's g. The loss is one, which all ranks hold a copy of, and so is its gradient."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Group) -> torch.Tensor:
        return group.all_reduce(partial)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None

    ### END SOLUTION
