"""Mutant: weights travel with half of their digits.

outcome: "wrong"
diagnosis: "loses digits on the way"
"""

from torch.nn.functional import pad


def zero3_unit(units, x, loss_gradient, group):
    inputs = []
    for unit in units:
        inputs.append(x)
        weights = group.all_gather(unit.shard.float())[: unit.numel].double()
        x = unit.forward(weights, x)
    gradient = loss_gradient(x)
    of_shards = []
    for unit, x in zip(reversed(units), reversed(inputs)):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        of_weights = pad(of_weights, (0, group.size * unit.shard.numel() - unit.numel))
        of_shards.append(group.reduce_scatter(of_weights, op="mean"))
    return of_shards[::-1]
