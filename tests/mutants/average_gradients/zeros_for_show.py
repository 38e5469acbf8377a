"""Mutant: takes part with zeros, and drops the mean.

outcome: "wrong"
diagnosis: "leaves out the rank that has no gradient"
"""

import torch


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                group.all_reduce(torch.zeros_like(parameter))
            else:
                parameter.grad = group.all_reduce(parameter.grad) / group.size
