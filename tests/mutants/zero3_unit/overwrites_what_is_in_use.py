"""Mutant: the next unit is gathered in advance, into the only buffer.

outcome: "wrong"
diagnosis: "uses weights that are on their way"
"""

import torch
from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs = []
    longest = max(unit.shard.numel() for unit in units) * group.size
    buffer = x.new_empty(longest)

    def gather(unit):
        out = buffer[: unit.shard.numel() * group.size]
        return group.all_gather(unit.shard, out=out, wait=False)

    pending = gather(units[0])
    for i, unit in enumerate(units):
        inputs.append(x)
        weights = pending.wait()[: unit.numel]
        if i + 1 < len(units):
            pending = gather(units[i + 1])
        x = unit.forward(weights, x)
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_weights = pad(of_weights, (0, group.size * unit.shard.numel() - unit.numel))
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
