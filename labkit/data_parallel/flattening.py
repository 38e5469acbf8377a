"""All parameters as one row of numbers, and back: how they travel in one message."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def flattened(parameters: Iterable[Tensor]) -> Tensor:
    """A copy of all of them, one after the other: (numel of all,)."""
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@torch.no_grad()
def put(flat: Tensor, parameters: Iterable[Tensor]) -> None:
    """`flattened` run backwards: set each parameter from its part of `flat`, (numel of all,)."""
    for parameter, part in parts_of(flat, parameters):
        parameter.copy_(part)


def parts_of(flat: Tensor, parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with the view of its part of `flat`, in the parameter's shape."""
    parameters = list(parameters)
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [(p, part.view(p.shape)) for p, part in zip(parameters, parts, strict=True)]
