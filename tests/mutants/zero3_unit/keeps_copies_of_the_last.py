"""Mutant: copies of the last three units wait for backward.

outcome: "over budget"
diagnosis: "keeps the weights from forward to backward"
"""

from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs, kept = [], []
    for unit in units:
        inputs.append(x)
        weights = group.all_gather(unit.shard)[: unit.numel]
        x = unit.forward(weights, x)
        if len(inputs) > len(units) - 3:
            kept.append(weights.clone())
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = kept.pop() if kept else group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_weights = pad(of_weights, (0, group.size * unit.shard.numel() - unit.numel))
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
