"""Mutant: half the bytes: gradients travel in bfloat16.

outcome: "wrong"
diagnosis: "loses digits on the way"
"""

import torch


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            total = group.all_reduce(parameter.grad.bfloat16())
            parameter.grad = (total / group.size).to(parameter.dtype)
