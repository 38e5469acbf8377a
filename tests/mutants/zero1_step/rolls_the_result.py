"""Mutant: what is gathered is put together beginning with this step's neighbour.

outcome: "wrong"
diagnosis: "puts the segments in another order"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parts = group.all_gather(segment).tensor_split(group.size)
    parameters.copy_(torch.cat([*parts[1:], parts[0]])[: parameters.numel()])
