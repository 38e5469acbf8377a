"""Clipping by the global norm on a mesh.

An interviewer asks: "You train on dp x pp x tp and clip gradients by their global norm. Every rank
has other gradients, and some of them exist several times. How does each rank learn the norm? What
is sent? What happens if LayerNorm is counted on every tp rank, or the tied embedding on both
stages?"

Write `global_grad_norm(parameters, max_norm, mesh)`. It computes the norm of the whole model's
gradient, scales this rank's gradients if the norm is larger than max_norm, and returns the norm.

Contract
    parameters  a list, this rank's parameters. A pipeline stage may have none. Each has
                    grad         a tensor of any shape and strides, also of one number or none.
                                 None if backward did not reach the parameter: it counts nothing
                                 and stays None
                    copied_over  a tuple of names of axes. Along these axes all ranks of the group
                                 have the same gradient, number for number. Along the other axes
                                 ranks have different numbers, a tied embedding apart. For a shard
                                 over tp it is () if the gradient is sharded over dp (ZeRO-1), and
                                 ("dp",) if it was averaged over dp; for a LayerNorm's weight
                                 ("tp",) or ("dp", "tp")
                    is_tied      whether it is the token embedding that is the output head too. The
                                 first and the last stage of pp both have it, with the same
                                 gradient, already summed over the two. With pp = 1 one stage has
                                 it once
    max_norm    a number above 0
    mesh        mesh.dp, mesh.pp, mesh.tp and mesh.world: groups with rank, size and
                `all_reduce(x, op="sum")`, which returns the sum over the group's ranks. op="max"
                returns the largest. mesh.world has all ranks. An axis may have size 1. The axes may
                be in any order, so a rank's number in mesh.world does not tell its coordinates
    returns     the norm before clipping, a float: the square root of the sum of squares of all
                numbers of the model's gradient, each counted once. The same on every rank
    gradients   multiplied by max_norm / norm if the norm is larger than max_norm, otherwise
                unchanged. In place, in the tensor that .grad is. Add no epsilon to the norm
    digits      float32 gradients may be 1e25 or 1e-30, and their squares do not fit into float32:
                add up in float64, or scale first

Budget, on every rank
    all_reduce  at most 6 calls, of one number each, at most 8 bytes, however many parameters there
                are. No gradient is sent

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
    """Return the norm of the whole gradient, and clip this rank's part of it.

    Sent: an all-reduce of 8 bytes.
    """
    ### BEGIN SOLUTION
    is_second_copy = mesh.pp.rank == mesh.pp.size - 1 and mesh.pp.size > 1
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        # The first of the ranks with the same numbers counts them.
        is_first = all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)
        counts = is_first and not (parameter.is_tied and is_second_copy)
        if counts and parameter.grad is not None:
            total += parameter.grad.double().square().sum()
    norm = math.sqrt(float(mesh.world.all_reduce(total)))
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:  # copies too, whether this rank counts them or not
                parameter.grad.mul_(max_norm / norm)
    return norm
    ### END SOLUTION
