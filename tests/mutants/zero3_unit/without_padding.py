"""Mutant: gradients are reduced as they are.

outcome: "crashed"
diagnosis: "crashes where n does not divide a unit"
"""

import torch
from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs = []
    for unit in units:
        inputs.append(x)
        weights = group.all_gather(unit.shard)[: unit.numel]
        x = unit.forward(weights, x)
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
