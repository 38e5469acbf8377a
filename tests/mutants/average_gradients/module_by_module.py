"""Mutant: the parameters of each submodule, tied ones too.

outcome: "over budget"
diagnosis: "reduces a tied parameter twice"
"""

import torch


def average_gradients(module, group):
    for each in module.modules():
        for parameter in each.parameters(recurse=False):
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
