"""Mutant: x gets what this rank's features say of it.

outcome: "wrong"
diagnosis: "no all-reduce in backward"
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
    hidden_BTf = gelu(linear(x_BTD, up_fD, up_f))
    return Summed.apply(linear(hidden_BTf, down_Df), group) + down_D
