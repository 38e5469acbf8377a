"""Mutant: no division.

outcome: "wrong"
diagnosis: "sums instead of averaging"
"""

import torch


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.all_reduce(parameter.grad, out=parameter.grad)
