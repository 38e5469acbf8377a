"""Mutant: n is taken to divide the size.

outcome: "crashed"
diagnosis: "crashes where n does not divide the size"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, 0)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
