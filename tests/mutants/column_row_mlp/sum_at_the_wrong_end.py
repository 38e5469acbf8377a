"""Mutant: the all-reduce of backward is that of the sum.

outcome: "wrong"
diagnosis: "has the all-reduce of backward at the wrong end"
"""

import torch
from torch.nn.functional import gelu, linear


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, group):
        ctx.group = group
        return group.all_reduce(partial)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.all_reduce(gradient), None


def column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group):
    hidden_BTf = gelu(linear(x_BTD, up_fD, up_f))
    return Summed.apply(linear(hidden_BTf, down_Df), group) + down_D
