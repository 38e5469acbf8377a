"""Mutant: the residual is gathered, and every rank normalises all of it.

outcome: "over budget"
diagnosis: "keeps all rows for backward"
"""

import torch
from torch.nn.functional import layer_norm, pad


def sequence_parallel_norm(z_ND, r_nD, weight_D, group):
    residual_nD = r_nD + ReduceScatter.apply(z_ND, len(r_nD), group)
    weight_D = OfAllRanks.apply(weight_D, group)
    residual_ND = AllGather.apply(residual_nD, len(z_ND), group)
    return residual_nD, layer_norm(residual_ND, weight_D.shape, weight_D, eps=1e-5)


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
