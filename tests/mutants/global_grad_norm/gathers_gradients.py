"""Mutant: all gradients travel, and the norm is taken of what comes.

outcome: "over budget"
diagnosis: "sends gradients"
"""

import math

import torch


def global_grad_norm(parameters, max_norm, mesh):
    is_second_copy = mesh.pp.rank == mesh.pp.size - 1 and mesh.pp.size > 1
    everything = torch.zeros(mesh.world.size, 1000, dtype=torch.float64)
    parts = [torch.zeros(0, dtype=torch.float64)]
    for parameter in parameters:
        is_first = all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)
        counts = is_first and not (parameter.is_tied and is_second_copy)
        if counts and parameter.grad is not None:
            parts.append(parameter.grad.double().flatten())
    mine = torch.cat(parts)
    everything[mesh.world.rank, : len(mine)] = mine
    norm = float(mesh.world.all_reduce(everything).norm())
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)
    return norm
