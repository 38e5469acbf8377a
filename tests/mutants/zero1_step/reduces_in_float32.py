"""Mutant: gradients travel with half of their digits.

outcome: "wrong"
diagnosis: "loses digits on the way"
"""

from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    padding = (0, -parameters.numel() % group.size)
    gradient = group.reduce_scatter(pad(gradients, padding).float(), op="mean").double()
    segment = pad(parameters, padding).tensor_split(group.size)[group.rank]
    optimizer.step(segment, gradient)
    parameters.copy_(group.all_gather(segment)[: parameters.numel()])
