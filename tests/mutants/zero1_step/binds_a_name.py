"""Mutant: the gathered parameters are another tensor.

outcome: "wrong"
diagnosis: "the parameters stay as they were"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parameters = group.all_gather(segment)[: parameters.numel()]
