"""Mutant: every rank computes the whole MLP.

outcome: "over budget"
diagnosis: "gathers the weights"
"""

import torch
from torch.nn.functional import gelu, linear


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
    up_FD, up_F = Gathered.apply(up_fD, group), Gathered.apply(up_f, group)
    down_DF = Gathered.apply(down_Df.t(), group).t()
    return linear(gelu(linear(x_BTD, up_FD, up_F)), down_DF, down_D)
