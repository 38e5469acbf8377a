"""Mutant: the tensor has its numbers elsewhere afterwards, and views of it have the old ones.

outcome: "wrong"
diagnosis: "gives the parameters other memory"
"""

from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding), op="mean")
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parameters.data = group.all_gather(segment)[: parameters.numel()]
