"""Clipping by the global norm on a mesh.

An interviewer asks: "You train on dp x pp x tp, and clip gradients by their global norm. Every rank
has other gradients, and some are there several times. How does each rank learn the norm? What is
sent? What happens if LayerNorm is counted on every tp rank, or the tied embedding on both stages?"

Write `global_grad_norm(parameters, max_norm, mesh)`: work out the norm of the whole model's
gradient, scale this rank's gradients where it is larger than max_norm, and return it.

Contract
    parameters  this rank's, a list; a pipeline stage may have none. Each has
                    grad         a tensor of any shape, of one number or of none as well; or None
                                 where backward did not reach it: it counts nothing, and stays None
                    copied_over  a tuple of names of axes: along these all ranks of the group have
                                 the same gradient, number for number. () where it is sharded over
                                 tp, and over dp (ZeRO-1): ranks have different numbers of it.
                                 ("tp",) for a LayerNorm's weight, ("dp",) where data parallelism
                                 has averaged the gradients, ("dp", "tp") for both
                    is_tied      whether it is the token embedding, which is the head as well: the
                                 first and the last stage of pp have it both, with the same
                                 gradient, summed over the two already. With pp = 1 there is one
    max_norm    a number above 0
    mesh        mesh.dp, mesh.pp, mesh.tp and mesh.world: groups with rank, size and
                `all_reduce(x, op="sum")`, which returns the sum over the group's ranks; op="max"
                gives the largest. mesh.world has all ranks. An axis may have size 1, and the axes
                are in any order: a rank's number in mesh.world does not say where it is
    returns     the norm before clipping, a float: the root of the sum of the squares of all numbers
                of the model's gradient, each counted once; the same on every rank, bit for bit
    gradients   multiplied by max_norm / norm where the norm is larger, otherwise left as they are;
                in place, in the tensor that .grad is, and nothing added to the norm
    digits      gradients of float32 may be 1e25 or 1e-30, and their squares are no float32: add up
                in float64, or scale first

Budget, on every rank
    all_reduce  of one number of 8 bytes at most, and no more than 6 of them, however many
                parameters there are. No gradient is sent

Paper: Pascanu et al., arXiv:1211.5063, section 3.2; Megatron-LM, arXiv:1909.08053.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from labkit.comm import Group


class Parameter(Protocol):
    grad: torch.Tensor | None
    copied_over: tuple[str, ...]
    is_tied: bool


class Mesh(Protocol):
    dp: Group
    pp: Group
    tp: Group
    world: Group


def global_grad_norm(parameters: Sequence[Parameter], max_norm: float, mesh: Mesh) -> float:
    """The norm of the whole gradient; this rank's part of it is clipped.

    Wire: an all-reduce of 8 bytes.
    """
    ### BEGIN SOLUTION
    is_second_copy = mesh.pp.rank == mesh.pp.size - 1 and mesh.pp.size > 1
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        # Of several ranks with the same numbers the first counts them.
        is_first = all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)
        counts = is_first and not (parameter.is_tied and is_second_copy)
        if counts and parameter.grad is not None:
            total += parameter.grad.double().square().sum()
    norm = math.sqrt(float(mesh.world.all_reduce(total)))
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:  # counted here or not
                parameter.grad.mul_(max_norm / norm)
    return norm
    ### END SOLUTION
