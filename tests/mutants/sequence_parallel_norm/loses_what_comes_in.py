"""Mutant: backward forgets that the residual goes on.

outcome: "wrong"
diagnosis: "loses the gradient that comes in for the residual"
"""

import torch
from torch.nn.functional import layer_norm, pad


def sequence_parallel_norm(z_ND, r_nD, weight_D, group):
    return Region.apply(z_ND, r_nD, weight_D, group)


class Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z_ND, r_nD, weight_D, group):
        num_rows, k = len(z_ND), -(-len(z_ND) // group.size)
        padded = pad(z_ND, (0, 0, 0, k * group.size - num_rows))
        residual_nD = r_nD + group.reduce_scatter(padded)[: len(r_nD)]
        normed_nD = layer_norm(residual_nD, weight_D.shape, weight_D, eps=1e-5)
        everything = group.all_gather(pad(normed_nD, (0, 0, 0, k - len(r_nD))))
        x_ND = everything[:num_rows].clone()
        ctx.save_for_backward(residual_nD, weight_D)
        ctx.group, ctx.k, ctx.num_rows = group, k, num_rows
        return residual_nD, x_ND

    @staticmethod
    def backward(ctx, residual_gradient_nD, x_gradient_ND):
        (residual_nD, weight_D), group = ctx.saved_tensors, ctx.group
        padding = (0, 0, 0, ctx.k * group.size - ctx.num_rows)
        normed_gradient = group.reduce_scatter(pad(x_gradient_ND, padding))[: len(residual_nD)]
        with torch.enable_grad():
            h, w = residual_nD.detach().requires_grad_(), weight_D.detach().requires_grad_()
            y = layer_norm(h, w.shape, w, eps=1e-5)
        through, own = torch.autograd.grad(y, (h, w), normed_gradient)
        gradient_nD = through
        padding = (0, 0, 0, ctx.k - len(gradient_nD))
        z_gradient = group.all_gather(pad(gradient_nD, padding))[: ctx.num_rows]
        return z_gradient, gradient_nD, group.all_reduce(own), None
