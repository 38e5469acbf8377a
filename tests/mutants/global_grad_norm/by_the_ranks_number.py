"""Mutant: coordinates are worked out of the number of the rank, with tp fastest and dp slowest.

outcome: "wrong"
diagnosis: "takes the order of the axes for granted"
"""

import math

import torch


def global_grad_norm(parameters, max_norm, mesh):
    rank, tp, pp = mesh.world.rank, mesh.tp.size, mesh.pp.size
    place = {"dp": rank // (tp * pp), "pp": rank // tp % pp, "tp": rank % tp}
    is_second_copy = place["pp"] == pp - 1 and pp > 1
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        is_first = all(place[axis] == 0 for axis in parameter.copied_over)
        counts = is_first and not (parameter.is_tied and is_second_copy)
        if counts and parameter.grad is not None:
            total += parameter.grad.double().square().sum()
    norm = math.sqrt(float(mesh.world.all_reduce(total)))
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)
    return norm
