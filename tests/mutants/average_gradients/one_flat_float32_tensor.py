"""Mutant: all gradients in one flat tensor of float32, those of float64 too.

outcome: "wrong"
diagnosis: "loses digits on the way"
"""

import torch


def average_gradients(module, group):
    trained = [each for each in module.parameters() if each.requires_grad]
    for each in trained:
        if each.grad is None:
            each.grad = torch.zeros_like(each)
    flat = torch.cat([each.grad.flatten().float() for each in trained])
    group.all_reduce(flat, op="mean", out=flat)
    for each, part in zip(trained, flat.split([each.numel() for each in trained])):
        each.grad.copy_(part.view_as(each))
