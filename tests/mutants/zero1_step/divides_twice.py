"""Mutant: op="mean", and a division.

outcome: "wrong"
diagnosis: "divides by the number of ranks twice"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient / group.size)
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
