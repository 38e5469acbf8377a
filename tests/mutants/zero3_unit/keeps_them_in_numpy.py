"""Mutant: each unit is gathered once, and waits for backward in a numpy array.

outcome: "over budget"
diagnosis: "keeps the weights from forward to backward"
"""

import torch
from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs, kept = [], []
    for unit in units:
        inputs.append(x)
        weights = group.all_gather(unit.shard)[: unit.numel]
        x = unit.forward(weights, x)
        kept.append(weights.numpy().copy())
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = torch.from_numpy(kept.pop())
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_weights = pad(of_weights, (0, group.size * unit.shard.numel() - unit.numel))
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
