"""Gradients over dp x ep: whose sums are still missing, and by how many all are divided.

    mesh dp=2, ep=2        rank 0, 1: experts 0 | 1        rank 2, 3: copies of 0 | 1

    shared      router, attention, norms, ...: every rank has the gradient of its own tokens.
                Summed over dp and ep.
    experts     rows of all ep ranks came to the expert, and backward brought the gradients of all
                their losses: it holds the sum over ep already. Summed over dp only.

Both are divided by the same number, all dp * ep ranks, since each rank's loss is the mean over its
own tokens and the loss that is meant is the mean over all ranks'. The classic mistake divides by
the size of the group that was summed over: an expert's gradient then is ep times too large, which
AdamW hides (it divides by the gradient's size) until the norm is clipped.

Clipping is by the norm of the whole gradient: shared numbers count once, not once per rank, and the
experts of all ep ranks count. See labkit.global_norm.

Wire, per rank: two all-reduces in a ring, of all shared numbers over dp x ep and of the rank's
experts over dp. Clipping: one number in an all-reduce over ep.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from labkit import arguments, global_norm
from labkit.comm import Group
from labkit.data_parallel.flattening import flattened, parts_of
from labkit.global_norm import as_part
from labkit.mesh import Mesh
from labkit.moe.expert_mlps import Experts
from labkit.moe.moe_layer import ExpertParallelMoE, MoE


def shared_and_experts(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The trained parameters by name: those on every rank, and those of this rank's experts."""
    of_experts = {
        id(parameter)
        for each in module.modules()
        if isinstance(each, Experts)
        for parameter in each.parameters()
    }
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return (
        {name: p for name, p in trained.items() if id(p) not in of_experts},
        {name: p for name, p in trained.items() if id(p) in of_experts},
    )


def reduce_gradients(module: nn.Module, mesh: Mesh) -> None:
    """Replace each gradient by that of the mean over all ranks' losses. After backward, on all.

    mesh: has the axes dp and ep; the experts are sharded over mesh.ep. Where shares of the batch
    differ in size, scale a rank's loss by `len(share) / len(batch) * num_ranks` before backward;
    of padded sequences count the targets that are not ignored.
    Memory: a flat copy of all shared gradients, and then one of the experts'.
    Before anything is sent: RuntimeError that names parameters without a gradient; ValueError for
    experts that are sharded over others than mesh.ep.
    """
    require_sharded_over_ep(module, mesh)
    everyone = mesh.joined("dp", "ep")
    shared, experts = shared_and_experts(module)
    without = [name for name, p in (shared | experts).items() if p.grad is None]
    if without:
        raise RuntimeError(
            f"rank {everyone.rank} has no gradient for {', '.join(without)}: its loss did not use "
            "them, and the other ranks would wait for them; call backward first, on every rank"
        )
    _reduce(shared.values(), everyone, everyone.size, "shared gradients")
    _reduce(experts.values(), mesh.dp, everyone.size, "gradients of experts")
    if mesh.ep.size > 1:
        for parameter in experts.values():
            as_part(parameter)


def clip_gradients(module: nn.Module, mesh: Mesh, max_norm: float) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`.

    After `reduce_gradients`, on every rank. Returns the norm before, (), in float64, the same on
    every rank. TypeError or ValueError for a norm that is not above 0; ValueError for a mesh with
    another axis, and for experts that are sharded over others than mesh.ep.
    """
    require_sharded_over_ep(module, mesh)
    other = [axis for axis, size in mesh.sizes.items() if axis not in ("dp", "ep") and size > 1]
    if other:
        raise ValueError(
            f"{other[0]}={mesh.sizes[other[0]]}: the norm is added up over ep alone, and shards "
            f"along {other[0]} would be missing; make the mesh of dp and ep, or see "
            "labkit.global_norm"
        )
    # After the reduction dp holds copies of everything, so the sum over ep is all of it.
    shared, experts = shared_and_experts(module)
    held = [(p, mesh.ep.size) for p in shared.values()] + [(p, 1) for p in experts.values()]
    gradients = [(p.grad, num_holders) for p, num_holders in held if p.grad is not None]
    return global_norm.clip(gradients, max_norm, mesh.ep)


def require_sharded_over_ep(module: nn.Module, mesh: Mesh) -> None:
    """ValueError for a layer whose experts are on other ranks: those of two would be added up."""
    arguments.instance("mesh", mesh, Mesh, "give a Mesh with the axes dp and ep")
    for name, layer in module.named_modules():
        if isinstance(layer, MoE):
            ranks: tuple[int, ...] = (mesh.world.ranks[mesh.world.rank],)
        elif isinstance(layer, ExpertParallelMoE):
            ranks = layer.group.ranks
        else:
            continue
        if ranks != mesh.ep.ranks:
            raise ValueError(
                f"{name or type(layer).__name__}: its experts are sharded over ranks "
                f"{list(ranks)}, and mesh.ep has {list(mesh.ep.ranks)}; pass mesh.ep where the "
                "layer is made (a layer without a group is for an ep of 1)"
            )


@torch.no_grad()
def _reduce(parameters: Iterable[Tensor], group: Group, divisor: int, label: str) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:  # of experts, on a rank that has none; its dp neighbours have none either
        return
    flat = flattened(gradients)
    flat /= divisor  # before the sum, which in float16 may overflow where the mean fits
    with group.label(label):
        group.all_reduce(flat, out=flat)
    for gradient, part in parts_of(flat, gradients):
        gradient.copy_(part)
