"""Mutant: segments are owned as after a ring's reduce-scatter: rank + 1.

outcome: "wrong"
diagnosis: "steps a segment with another one's gradients"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[(group.rank + 1) % group.size]
    optimizer.step(segment, gradient)
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
