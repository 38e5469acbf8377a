"""Mutant: all units are gathered first.

outcome: "over budget"
diagnosis: "gathers too many units in advance"
"""

import torch
from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs = []
    gathered = [group.all_gather(unit.shard)[: unit.numel] for unit in units]
    for unit in units:
        inputs.append(x)
        weights = gathered.pop(0)
        x = unit.forward(weights, x)
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_weights = pad(of_weights, (0, group.size * unit.shard.numel() - unit.numel))
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
