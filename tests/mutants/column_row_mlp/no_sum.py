"""Mutant: each rank's partial result.

outcome: "wrong"
diagnosis: "does not sum over the ranks"
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


def column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group):
    hidden_BTf = gelu(linear(Copied.apply(x_BTD, group), up_fD, up_f))
    return linear(hidden_BTf, down_Df) + down_D
