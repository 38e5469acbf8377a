"""Mutant: a rank without features hands in zeros, without x.

outcome: "hung"
diagnosis: "a rank without features leaves the others waiting"
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


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, group):
        return group.all_reduce(partial)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group):
    if len(up_fD):
        hidden_BTf = gelu(linear(Copied.apply(x_BTD, group), up_fD, up_f))
        partial_BTD = linear(hidden_BTf, down_Df)
    else:
        partial_BTD = torch.zeros_like(x_BTD)
    return Summed.apply(partial_BTD, group) + down_D
