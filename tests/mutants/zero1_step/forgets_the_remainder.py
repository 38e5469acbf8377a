"""Mutant: n equal segments, rounded down.

outcome: "wrong"
diagnosis: "forgets the remainder"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    numel = parameters.numel() // group.size * group.size
    gradient = group.reduce_scatter(gradients[:numel], op="mean")
    segment = parameters[:numel].tensor_split(group.size)[group.rank].clone()
    optimizer.step(segment, gradient)
    parameters[:numel] = group.all_gather(segment)
