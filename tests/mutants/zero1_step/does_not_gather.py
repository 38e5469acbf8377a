"""Mutant: only this rank's segment is written back.

outcome: "wrong"
diagnosis: "the updated segments are not gathered"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    begin = group.rank * segment.numel()
    own = parameters[begin : begin + segment.numel()]
    own.copy_(segment[: own.numel()])
