"""Mutant: torch's own clipping, on every rank.

outcome: "wrong"
diagnosis: "returns the norm of one rank's gradients"
"""

import math

import torch


def global_grad_norm(parameters, max_norm, mesh):
    grads = [parameter for parameter in parameters if parameter.grad is not None]
    return float(torch.nn.utils.clip_grad_norm_(grads, max_norm))
