"""Clipping by the norm of the whole gradient, of which each rank has all that is shared and some
experts.

    shared      the same numbers on every rank: counted once, not once per rank
    experts     each ep rank has its own: their squares add up over ep; dp holds copies

A rank that clipped by what it has itself would scale shared parameters differently from the others,
and the copies would drift apart.
Wire: one number in an all-reduce over mesh.ep.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.mesh import Mesh
from labkit.moe.gradients import require_sharded_over_ep, shared_and_experts


@torch.no_grad()
def clip_gradients(module: nn.Module, mesh: Mesh, max_norm: float) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`.

    After `reduce_gradients`, on every rank. Returns the norm before, (), in float64, the same on
    every rank. TypeError or ValueError for a norm that is not above 0; ValueError for a mesh with
    another axis, and for experts that are sharded over others than mesh.ep.
    """
    max_norm = check_max_norm(max_norm)
    arguments.instance("mesh", mesh, Mesh, "give a Mesh with the axes dp and ep")
    other = [axis for axis, size in mesh.sizes.items() if axis not in ("dp", "ep") and size > 1]
    if other:
        raise ValueError(
            f"{other[0]}={mesh.sizes[other[0]]}: the norm is added up over ep alone, and shards "
            f"along {other[0]} would be missing; make the mesh of dp and ep, or see "
            "labkit.combined.global_norm"
        )
    require_sharded_over_ep(module, mesh)
    shared, experts = shared_and_experts(module)
    square = _square(experts.values()).to(mesh.world.device)
    with mesh.ep.label("norm of experts"):
        square = mesh.ep.all_reduce(square)
    norm = (square + _square(shared.values()).to(square.device)).sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)
    for parameter in (*shared.values(), *experts.values()):
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad))
    return norm


def check_max_norm(max_norm: float) -> float:
    """TypeError or ValueError for what gradients cannot be clipped by."""
    return arguments.number("max_norm", max_norm, "a norm above 0, such as 1.0", above=0)


def _square(parameters: Iterable[Tensor]) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in gradients]
    return torch.stack(norms).square().sum()
