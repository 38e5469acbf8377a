"""What a mistake in sequence_parallel_norm is, and the right values that others are held against.

One result comes from the one before: residual -> x, and back: gradient of r -> of z, of the weight.
So the first that is wrong names the mistake, given that those before it are right.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.graders.sequence_inputs import Given, Step, norm_backward

OfRank = Callable[[int], Tensor]


@dataclass(frozen=True)
class Mistake:
    """A name for it, and what a rank then has."""

    name: str
    explanation: str
    result: OfRank


def h_of(step: Step) -> Tensor:
    """The residual of all rows, (N, D)."""
    return step.sum_ND + step.r_ND


def h_gradient_of(given: Given, step: Step) -> Tensor:
    """Of the residual, all rows: what comes in for it, and what comes through the norm."""
    through_ND, _ = norm_backward(h_of(step), given.weight_D, step.x_gradient_ND)
    return torch.cat(step.residual_gradients) + through_ND


def weight_gradient_of(given: Given, step: Step) -> Tensor:
    """Of all rows."""
    return norm_backward(h_of(step), given.weight_D, step.x_gradient_ND)[1]


def alone(step: Step, rank: int, x_ND: Tensor) -> Tensor:
    """The rank's rows of it, and zeros in the others."""
    alone_ND = torch.zeros_like(x_ND)
    step.own(rank, alone_ND).copy_(step.own(rank, x_ND))
    return alone_ND


def everywhere(value: Tensor) -> OfRank:
    """The same on every rank."""
    return lambda rank: value


def by_rows(step: Step, value_ND: Tensor) -> OfRank:
    """Of each rank its rows."""
    return lambda rank: step.own(rank, value_ND)
