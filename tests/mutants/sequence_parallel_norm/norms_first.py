"""Mutant: the norm is of the row layer's output, and the residual comes after it.

outcome: "wrong"
diagnosis: "normalises before it adds the residual"
"""

import torch
from torch.nn.functional import layer_norm, pad


def sequence_parallel_norm(z_ND, r_nD, weight_D, group):
    output_nD = ReduceScatter.apply(z_ND, len(r_nD), group)
    weight_D = OfAllRanks.apply(weight_D, group)
    normed_nD = layer_norm(output_nD, weight_D.shape, weight_D, eps=1e-5)
    return r_nD + output_nD, AllGather.apply(normed_nD, len(z_ND), group)


def reduced(x_ND, num_rows, group):
    padding = (0, 0, 0, -len(x_ND) % group.size)
    return group.reduce_scatter(pad(x_ND, padding))[:num_rows]


def gathered(x_nD, num_rows, group):
    rows_per_rank = -(-num_rows // group.size)
    return group.all_gather(pad(x_nD, (0, 0, 0, rows_per_rank - len(x_nD))))[:num_rows]


class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z_ND, num_rows, group):
        ctx.num_rows, ctx.group = len(z_ND), group
        return reduced(z_ND, num_rows, group)

    @staticmethod
    def backward(ctx, gradient_nD):
        return gathered(gradient_nD, ctx.num_rows, ctx.group), None, None


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_nD, num_rows, group):
        ctx.num_rows, ctx.group = len(x_nD), group
        return gathered(x_nD, num_rows, group)

    @staticmethod
    def backward(ctx, gradient_ND):
        return reduced(gradient_ND, ctx.num_rows, ctx.group), None, None


class OfAllRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight_D, group):
        ctx.group = group
        return weight_D.view_as(weight_D)

    @staticmethod
    def backward(ctx, gradient_D):
        return ctx.group.all_reduce(gradient_D), None
