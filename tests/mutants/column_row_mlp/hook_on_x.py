"""Mutant: a hook on the caller's x.

outcome: "wrong"
diagnosis: "sums what reaches x past the MLP as well"
"""

import torch
from torch.nn.functional import gelu, linear


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, group):
        return group.all_reduce(partial)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def column_row_mlp(x_BTD, up_fD, up_f, down_Df, down_D, group):
    x_BTD.register_hook(lambda gradient: group.all_reduce(gradient))
    hidden_BTf = gelu(linear(x_BTD, up_fD, up_f))
    return Summed.apply(linear(hidden_BTf, down_Df), group) + down_D
