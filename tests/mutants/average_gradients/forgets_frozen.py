"""Mutant: every parameter has a gradient.

outcome: "crashed"
diagnosis: "crashes on a frozen parameter"
"""


def average_gradients(module, group):
    for parameter in module.parameters():
        parameter.grad = group.all_reduce(parameter.grad, op="mean")
