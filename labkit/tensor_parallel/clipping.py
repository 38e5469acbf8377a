"""Clipping by the norm of the whole gradient, of which each rank has a part.

    sharded         every rank has its share; the squares of all shares add up
    copied          (key-value heads, norms, positions) several ranks hold the same numbers, and a
                    sum over ranks would count them as often

So each rank divides a parameter's square by the number of ranks that hold just this part of it, and
the sum over the ranks counts every number once. A rank that clipped by its own norm would scale its
share differently from the others', and replicated parameters would drift apart.
Wire: one number in an all-reduce.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.tensor_parallel.full_state import group_of, parameters_with_cuts


@torch.no_grad()
def clip_gradients(model: nn.Module, max_norm: float, group: Group | None = None) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`.

    model: what `parallelize` returned, or a module of this package's layers; group: None takes the
    model's own. Returns the norm before, (), in float64, the same on every rank. Every rank calls
    it, after backward. TypeError or ValueError for a norm that is not above 0.
    """
    max_norm = arguments.number("max_norm", max_norm, "a norm above 0, such as 1.0", above=0)
    group = group_of(model, group)
    square = torch.zeros((), dtype=torch.float64, device=group.device)
    gradients: dict[Tensor, Tensor] = {}  # a tied parameter has one
    for _, parameter, cut in parameters_with_cuts(model):
        if parameter.grad is None or parameter in gradients:
            continue
        gradients[parameter] = parameter.grad
        size = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
        square += size.square().to(square.device) / cut.num_holders(group)
    norm: Tensor = group.all_reduce(square).sqrt()
    for gradient in gradients.values():
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1).to(gradient.device, gradient.dtype))
    return norm
