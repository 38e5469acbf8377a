"""Clipping by the norm of the whole gradient, when three axes have cut it.

    dp   after the reduce-scatter of ZeRO-1 each rank has a fragment: squares add up
    pp   each rank has its own layers: squares add up; the tied weight is on two ranks, whole
    tp   each rank has its share: squares add up; norms and positions all ranks have, whole, and
         key-value heads some

A sum of squares over all ranks counts what c ranks hold c times. So each rank divides the squares
of a parameter by c, and one all-reduce over all ranks counts every number once.

The norm comes after the reduction: that of a rank's own gradients, before, is of another batch. All
ranks get the same bits from the all-reduce, so that copies are scaled alike and stay copies.
What goes wrong: each rank's own norm scales shares of one matrix by different factors; copies that
count c times make the norm too large, and training slower than its learning rate says, by a factor
that changes with the layout. No error in any of them.

Wire: one number in an all-reduce over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from labkit import arguments
from labkit.combined.gpt import CombinedGPT
from labkit.comm import Group
from labkit.zero import ShardedOptimizer

NORM = "norm of the gradients"
"""The label of its all-reduce."""


@torch.no_grad()
def clip_gradients(model: CombinedGPT, optimizer: ShardedOptimizer, max_norm: float) -> Tensor:
    """Scale the gradients so that their norm, over all parameters once, is at most `max_norm`.

    optimizer: over mesh.dp, of the model's parameters by GPT's names. Every rank calls it between
    backward and step. Returns the norm before, (), in float64, with the same bits on every rank.
    TypeError or ValueError for a norm that is not above 0.
    """
    max_norm = check_max_norm(max_norm)
    gradients = optimizer.named_gradients()
    norm = global_norm(gradients, model.num_copies(), model.mesh.world)
    for _, gradient in gradients:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1).to(gradient.device, gradient.dtype))
    return norm


def check_max_norm(max_norm: float) -> float:
    """TypeError or ValueError for what gradients cannot be clipped by."""
    return arguments.number("max_norm", max_norm, "a norm above 0, such as 1.0", above=0)


def global_norm(
    gradients: Iterable[tuple[str, Tensor]], num_copies: Mapping[str, int], group: Group
) -> Tensor:
    """The norm of what all ranks of `group` have together, each number once: (), in float64.

    gradients: this rank's, by name. num_copies: by name, how many ranks hold just the same.
    """
    square = torch.zeros((), dtype=torch.float64, device=group.device)
    for name, gradient in gradients:
        size = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        square += size.square().to(square.device) / num_copies[name]
    with group.label(NORM):
        total: Tensor = group.all_reduce(square)
    return total.sqrt()
