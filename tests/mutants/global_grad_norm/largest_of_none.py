"""Mutant: gradients are divided by their largest number, and one of them has none.

outcome: "crashed"
diagnosis: "forgets gradients without numbers"
"""

import math

import torch


def global_grad_norm(parameters, max_norm, mesh):
    present = [each for each in parameters if each.grad is not None]
    largest = max([0.0, *(float(each.grad.abs().max()) for each in present)])
    largest = float(mesh.world.all_reduce(torch.tensor(largest), op="max"))
    is_second_copy = mesh.pp.rank == mesh.pp.size - 1 and mesh.pp.size > 1
    total = torch.zeros((), dtype=torch.float64)
    for parameter in present:
        is_first = all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)
        if is_first and not (parameter.is_tied and is_second_copy) and largest:
            total += (parameter.grad.double() / largest).square().sum()
    norm = math.sqrt(float(mesh.world.all_reduce(total))) * largest
    if norm > max_norm:
        for parameter in present:
            parameter.grad.mul_(max_norm / norm)
    return norm
