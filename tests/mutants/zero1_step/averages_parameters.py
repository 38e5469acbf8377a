"""Mutant: a step with this rank's gradients, then the mean of the parameters.

outcome: "wrong"
diagnosis: "averages parameters instead of gradients"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    optimizer.step(parameters, gradients)
    group.all_reduce(parameters, op="mean", out=parameters)
