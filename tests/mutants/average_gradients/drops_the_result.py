"""Mutant: the mean goes into a variable.

outcome: "wrong"
diagnosis: "the gradients stay as they were"
"""

import torch


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = group.all_reduce(parameter.grad)
            gradient /= group.size
