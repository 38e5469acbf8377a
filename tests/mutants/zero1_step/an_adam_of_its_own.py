"""Mutant: plain data parallelism, with whole states in an optimizer that nobody sees.

outcome: "wrong"
diagnosis: "does not step with the optimizer that it is given"
"""

OWN = {}


def zero1_step(parameters, gradients, optimizer, group):
    means = group.all_reduce(gradients, op="mean")
    if optimizer not in OWN:
        OWN[optimizer] = type(optimizer)()
    OWN[optimizer].step(parameters, means)
