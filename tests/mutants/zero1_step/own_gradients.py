"""Mutant: the segment of this rank's own gradients.

outcome: "wrong"
diagnosis: "a segment steps with one rank's gradients only"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    gradient = pad(gradients, padding).tensor_split(group.size)[group.rank]
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
