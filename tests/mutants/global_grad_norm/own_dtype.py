"""Mutant: squares are taken in the dtype of the gradient.

outcome: "wrong"
diagnosis: "loses digits in the sum"
"""

import math

import torch


def global_grad_norm(parameters, max_norm, mesh):
    is_second_copy = mesh.pp.rank == mesh.pp.size - 1 and mesh.pp.size > 1
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        is_first = all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)
        counts = is_first and not (parameter.is_tied and is_second_copy)
        if (
            parameter.grad is not None
            and parameter.grad.abs().sum() > 1e18
            or (parameter.grad is not None and parameter.grad.abs().sum() < 1e-18)
        ):
            parts = parameter.grad.double()
            total += parts.square().sum() * counts
        elif counts and parameter.grad is not None:
            total += parameter.grad.square().sum().double()
    norm = math.sqrt(float(mesh.world.all_reduce(total)))
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)
    return norm
