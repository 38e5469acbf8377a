"""Mutant: all features come to every rank, which then computes all of down.

outcome: "over budget"
diagnosis: "communicates between the layers"
"""

import torch
from torch.nn.functional import gelu, linear


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.all_reduce(gradient), None


class Gathered(torch.autograd.Function):
    """All ranks compute the same from what is gathered: each takes its own rows of the gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return group.all_gather(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.tensor_split(ctx.group.size)[ctx.group.rank], None


def column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group):
    hidden_BTf = gelu(linear(Copied.apply(x_BTD, group), up_fD, up_f))
    hidden_BTF = Gathered.apply(hidden_BTf.permute(2, 0, 1), group).permute(1, 2, 0)
    down_DF = Gathered.apply(down_Df.t(), group).t()
    return linear(hidden_BTF, down_DF, down_D)
