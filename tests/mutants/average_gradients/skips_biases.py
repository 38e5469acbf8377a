"""Mutant: matrices only.

outcome: "wrong"
diagnosis: "skips parameters"
"""

import torch


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dim() > 1:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
