"""Mutant: the step is made on all parameters, with zeros for other segments' gradients.

outcome: "over budget"
diagnosis: "keeps the states of all parameters"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    weights = pad(parameters, padding)
    of_all = torch.zeros_like(weights)
    of_all.tensor_split(group.size)[group.rank].copy_(gradient)
    optimizer.step(weights, of_all)
    segment = weights.tensor_split(group.size)[group.rank]
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
