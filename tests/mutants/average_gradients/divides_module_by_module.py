"""Mutant: divides submodule by submodule, a tied parameter twice.

outcome: "wrong"
diagnosis: "treats a tied parameter twice"
"""

import torch


def average_gradients(module, group):
    for each in module.modules():
        for parameter in each.parameters(recurse=False):
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad /= group.size
    for parameter in module.parameters():
        if parameter.requires_grad:
            group.all_reduce(parameter.grad, out=parameter.grad)
