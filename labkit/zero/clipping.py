"""The norm of gradients that are cut over ranks, and clipping by it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group


def checked_norm(max_norm: object) -> float:
    """A norm above 0. TypeError, ValueError."""
    return arguments.number("max_norm", max_norm, "a norm above 0, such as 1.0", above=0)


@torch.no_grad()
def clip(gradients: Sequence[Tensor], max_norm: float, group: Group) -> Tensor:
    """Scale gradients down, of which each rank has a part, to a norm of `max_norm` over all parts.

    Returns the norm before, (), in float64. Wire: one number in an all-reduce.
    """
    square = torch.zeros((), dtype=torch.float64, device=group.device)
    for gradient in gradients:
        numbers = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        # Added up in float64, without a copy in it: that would be twice the gradients' memory.
        size = torch.linalg.vector_norm(numbers, dtype=torch.float64)
        square += size.square().to(square.device)
    with group.label("norm of the gradients"):
        norm: Tensor = group.all_reduce(square).sqrt()
    for gradient in gradients:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1).to(gradient.device, torch.float32))
    return norm
