"""Mutant: a mean, which is divided by n.

outcome: "wrong"
diagnosis: "divides by the number of ranks twice"
"""

import torch


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
            parameter.grad /= group.size
