"""Mutant: a list keeps everything that was gathered.

outcome: "over budget"
diagnosis: "never releases what it has gathered"
"""

import torch
from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs, gathered = [], []
    for unit in units:
        inputs.append(x)
        weights = group.all_gather(unit.shard)[: unit.numel]
        x = unit.forward(weights, x)
        gathered.append(weights)
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_weights = pad(of_weights, (0, group.size * unit.shard.numel() - unit.numel))
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
