"""Mutant: the mean of what the features say of x.

outcome: "wrong"
diagnosis: "averages the gradient of x"
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
        return ctx.group.all_reduce(gradient, op="mean"), None


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, group):
        return group.all_reduce(partial)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group):
    hidden_BTf = gelu(linear(Copied.apply(x_BTD, group), up_fD, up_f))
    return Summed.apply(linear(hidden_BTf, down_Df), group) + down_D
