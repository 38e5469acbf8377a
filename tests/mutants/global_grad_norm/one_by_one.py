"""Mutant: a collective for each parameter.

outcome: "over budget"
diagnosis: "calls a collective for each parameter"
"""

import math

import torch


def global_grad_norm(parameters, max_norm, mesh):
    is_second_copy = mesh.pp.rank == mesh.pp.size - 1 and mesh.pp.size > 1
    squares = []
    for parameter in parameters:
        is_first = all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)
        counts = is_first and not (parameter.is_tied and is_second_copy)
        has = counts and parameter.grad is not None
        squares.append(
            parameter.grad.double().square().sum() if has else torch.tensor(0.0).double()
        )
    squares += [torch.tensor(0.0).double()] * (8 - len(squares))
    norm = math.sqrt(sum(float(mesh.world.all_reduce(each)) for each in squares))
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)
    return norm
