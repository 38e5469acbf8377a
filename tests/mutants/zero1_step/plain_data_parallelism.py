"""Mutant: everybody steps everything.

outcome: "over budget"
diagnosis: "keeps the states of all parameters"
"""

import torch
from torch.nn.functional import pad


def zero1_step(parameters, gradients, optimizer, group):
    optimizer.step(parameters, group.all_reduce(gradients, op="mean"))
