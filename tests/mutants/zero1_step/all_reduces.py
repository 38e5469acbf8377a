"""Mutant: all gradients go to all ranks.

outcome: "over budget"
diagnosis: "all-reduces the gradients"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.all_reduce(pad(gradients, padding), op="mean")
    gradient = gradient.tensor_split(group.size)[group.rank]
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
