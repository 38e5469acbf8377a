"""Mutant: each rank reduces the gradients that it has.

outcome: "hung"
diagnosis: "a rank without a gradient leaves the others waiting"
"""


def average_gradients(module, group):
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
